#include "train/slice_tree.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>

namespace warpwright {
namespace {

constexpr std::int64_t kMostSlices = 64;

// The terms of a sum as an expression: "((0+1)+2)".
using Sums = std::vector<std::string>;

// Runs the tree's stack over the terms of its nodes; returns what is left on it.
Sums run(const SliceTree& tree, const Sums& terms) {
  Sums stack;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    stack.push_back(terms[i]);
    EXPECT_LE(stack.size(), tree.depth);
    for (int addition = 0; addition < tree.additions[i]; ++addition) {
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = fmt::format("({}+{})", stack.back(), right);
    }
  }
  return stack;
}

Sums names_of(std::int64_t first, std::int64_t count) {
  Sums names;
  for (std::int64_t i = first; i < first + count; ++i) names.push_back(std::to_string(i));
  return names;
}

// The definition: the largest power of two that is a proper part is the left half.
std::string expected(std::int64_t first, std::int64_t count) {
  if (count == 1) return std::to_string(first);
  const auto left = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)) / 2);
  return fmt::format("({}+{})", expected(first, left), expected(first + left, count - left));
}

TEST(SliceTree, DependsOnTheNumberOfSlicesAlone) {
  for (std::int64_t total = 1; total <= kMostSlices; ++total) {
    const SliceTree tree = slice_tree(slice_nodes(0, total), total);
    EXPECT_EQ(run(tree, names_of(0, total)), Sums{expected(0, total)});
    EXPECT_TRUE(tree.whole.empty());
    EXPECT_EQ(tree.depth, static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(total))))
        << total;
  }
}

// Each part computes its whole nodes, and whoever gets them all continues.
TEST(SliceTree, EqualPartsGiveTheSameSum) {
  for (std::int64_t total = 1; total <= kMostSlices; ++total) {
    for (std::int64_t parts = 1; parts <= total; ++parts) {
      if (total % parts != 0) continue;
      const std::int64_t count = total / parts;
      std::vector<SliceNode> nodes;
      Sums sums;
      for (std::int64_t first = 0; first < total; first += count) {
        const SliceTree part = slice_tree(slice_nodes(first, count), total);
        const Sums left = run(part, names_of(first, count));
        if (parts == 1) {
          EXPECT_EQ(left, Sums{expected(0, total)});
          continue;
        }
        ASSERT_EQ(left.size(), part.whole.size());
        for (std::size_t i = 0; i < left.size(); ++i) {
          const SliceNode& node = part.whole[i];
          EXPECT_EQ(node.first % (node.end() - node.first), 0);
          EXPECT_EQ(left[i], expected(node.first, node.end() - node.first));
        }
        nodes.insert(nodes.end(), part.whole.begin(), part.whole.end());
        sums.insert(sums.end(), left.begin(), left.end());
      }
      if (parts == 1) continue;
      EXPECT_EQ(run(slice_tree(nodes, total), sums), Sums{expected(0, total)}) << total << " " << parts;
    }
  }
}

TEST(SliceTree, NeedsASumForEachLevel) {
  EXPECT_EQ(slice_tree(slice_nodes(0, 1), 1).additions, std::vector<int>{0});
  EXPECT_EQ(slice_tree(slice_nodes(0, 6), 6).additions, (std::vector<int>{0, 1, 0, 2, 0, 2}));
  EXPECT_EQ(slice_tree(slice_nodes(3, 3), 12).whole, (std::vector<SliceNode>{{3, 0}, {4, 1}}));
}

}  // namespace
}  // namespace warpwright
