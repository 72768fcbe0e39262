#include "runtime/placement.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>

namespace warpwright {
namespace {

// A set of offsets, kept as disjoint intervals that do not touch.
class Intervals {
 public:
  void add(std::size_t begin, std::size_t end) {
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != ends_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ends_.erase(next);
    }
    ends_.emplace_hint(next, begin, end);
  }

  // The end of an interval that meets [begin, end), or `begin` if there is none.
  std::size_t end_of_overlap(std::size_t begin, std::size_t end) const {
    const auto next = ends_.lower_bound(end);
    if (next == ends_.begin()) return begin;
    return std::max(begin, std::prev(next)->second);
  }

 private:
  std::map<std::size_t, std::size_t> ends_;  // begin -> end
};

// The offsets that are taken at each time. A segment tree over time: a block is added to the O(log n) nodes
// that make up its lifetime. A node's `own` offsets are taken during its whole span, the offsets `below` at
// some time within it.
class TakenOffsets {
 public:
  explicit TakenOffsets(std::size_t times) : size_(std::bit_ceil(times)), nodes_(2 * size_) {}

  void add(std::size_t first, std::size_t last, std::size_t begin, std::size_t end) {
    visit(first, last, [&](Node& node, bool whole) {
      if (whole) node.own.add(begin, end);
      node.below.add(begin, end);
      return true;
    });
  }

  // An offset up to which nothing can be placed because something is alive in [first, last] and overlaps
  // [begin, end); `begin` if nothing does.
  std::size_t end_of_overlap(std::size_t first, std::size_t last, std::size_t begin, std::size_t end) {
    std::size_t found = begin;
    visit(first, last, [&](const Node& node, bool whole) {
      found = (whole ? node.below : node.own).end_of_overlap(begin, end);
      return found == begin;
    });
    return found;
  }

 private:
  struct Node {
    Intervals own, below;
  };

  // Calls f(node, whether the node lies within [first, last]) for the nodes that make up the range and for
  // all nodes above these, until f returns false.
  template <class F>
  void visit(std::size_t first, std::size_t last, F&& f) {
    visit(1, 0, size_ - 1, first, last, f);
  }
  template <class F>
  bool visit(std::size_t node, std::size_t begin, std::size_t end, std::size_t first, std::size_t last,
             F& f) {
    if (last < begin || end < first) return true;
    const bool whole = first <= begin && end <= last;
    if (!f(nodes_[node], whole)) return false;
    if (whole) return true;
    const std::size_t middle = begin + (end - begin) / 2;
    return visit(2 * node, begin, middle, first, last, f) &&
           visit(2 * node + 1, middle + 1, end, first, last, f);
  }

  std::size_t size_;
  std::vector<Node> nodes_;
};

}  // namespace

std::size_t place_activations(std::vector<MemoryPlan::Block>& blocks) {
  std::vector<MemoryPlan::Block*> order;
  int last_call = -1;
  for (auto& block : blocks) {
    if (block.category != Category::activations) continue;
    order.push_back(&block);
    last_call = std::max(last_call, block.last_call);
  }
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  TakenOffsets taken(static_cast<std::size_t>(last_call + 2));
  std::size_t high_water = 0;
  for (MemoryPlan::Block* block : order) {
    // Blocks that no call uses share a time of their own before all calls.
    const auto first = static_cast<std::size_t>(block->first_call + 1);
    const auto last = static_cast<std::size_t>(block->last_call + 1);
    const std::size_t bytes = round_up(block->bytes);
    block->offset = 0;
    if (bytes == 0) continue;
    for (std::size_t offset = 0;; block->offset = offset) {
      offset = taken.end_of_overlap(first, last, block->offset, block->offset + bytes);
      if (offset == block->offset) break;
    }
    taken.add(first, last, block->offset, block->offset + bytes);
    high_water = std::max(high_water, block->offset + bytes);
  }
  return high_water;
}

}  // namespace warpwright
