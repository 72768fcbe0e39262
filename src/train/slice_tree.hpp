// The order in which a step adds up the gradients of its slices.
//
// The order is a binary tree over the slices, which depends on their number alone. A node of level k is the
// sum of 2^k slices, the first of which is a multiple of 2^k. Slices that fill no node of the next level are
// added at the end, from the right. A rank computes the largest whole nodes in its range of slices. A rank
// that has all these nodes, in order, continues with the same tree.
#pragma once

#include <cstdint>
#include <vector>

namespace warpwright {

// The slices [first, first + 2^level).
struct SliceNode {
  std::int64_t first = 0;
  int level = 0;

  std::int64_t end() const { return first + (std::int64_t{1} << level); }
  bool operator==(const SliceNode&) const = default;
};

// The sum of some nodes by a stack of partial sums. Each node is pushed, and then the two topmost sums are
// added, as often as `additions` says.
struct SliceTree {
  std::vector<int> additions;    // after each node
  std::vector<SliceNode> whole;  // the nodes that are left; empty if the step's sum is complete
  std::size_t depth = 0;         // most sums on the stack
};

// nodes: adjacent, in order. total: the step's slices.
SliceTree slice_tree(const std::vector<SliceNode>& nodes, std::int64_t total);

// The slices [first, first + count), one by one.
std::vector<SliceNode> slice_nodes(std::int64_t first, std::int64_t count);

}  // namespace warpwright
