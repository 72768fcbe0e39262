#include "train/slice_tree.hpp"

#include <algorithm>

namespace warpwright {
namespace {

// True if the two are the halves of a node.
bool are_siblings(const SliceNode& left, const SliceNode& right) {
  return left.level == right.level && left.first % (std::int64_t{2} << left.level) == 0;
}

}  // namespace

SliceTree slice_tree(const std::vector<SliceNode>& nodes, std::int64_t total) {
  SliceTree tree;
  std::vector<SliceNode>& stack = tree.whole;
  for (const SliceNode& node : nodes) {
    stack.push_back(node);
    tree.depth = std::max(tree.depth, stack.size());
    int additions = 0;
    while (stack.size() > 1 && are_siblings(stack[stack.size() - 2], stack.back())) {
      stack.pop_back();
      ++stack.back().level;
      ++additions;
    }
    tree.additions.push_back(additions);
  }
  if (!stack.empty() && stack.front().first == 0 && stack.back().end() == total) {
    tree.additions.back() += static_cast<int>(stack.size()) - 1;
    stack.clear();
  }
  return tree;
}

std::vector<SliceNode> slice_nodes(std::int64_t first, std::int64_t count) {
  std::vector<SliceNode> nodes;
  for (std::int64_t i = 0; i < count; ++i) nodes.push_back({first + i, 0});
  return nodes;
}

}  // namespace warpwright
