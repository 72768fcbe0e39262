// The sum of gradients over ranks along the same tree as on one rank (slice_tree.hpp).
//
// Each rank sends the others their shards of the largest nodes of the tree in its range of slices (once), or
// of each slice, and then adds its own shard of all nodes. The exchange only moves bytes, so the bits are
// those of one rank.
#pragma once

#include <memory>
#include <vector>

#include "train/rank_sum.hpp"

namespace warpwright {

class TreeSum final : public RankSum {
 public:
  explicit TreeSum(const SumLayout& layout);

  Memory allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const override;
  void prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) override;
  void run(Context& context, std::size_t unit, std::size_t round) const override;

 private:
  struct Node {
    int owner;
    std::size_t set;  // of the owner's stack
  };
  struct Unit {
    std::vector<Pieces> nodes, levels;
    std::unique_ptr<const Comm::Exchange> exchange;
  };

  std::int64_t elements_of_largest_unit(const std::vector<Tensor>& gradients) const;
  std::vector<Pieces> allocate_received(const std::vector<Tensor>& gradients, Allocator& allocator) const;
  std::size_t levels() const;  // partial sums that outlive an exchange

  std::vector<Node> nodes_;  // of an exchange, in the tree's order
  // For each node of all rounds: the partial sums before it, and the additions after it.
  std::vector<std::size_t> heights_;
  std::vector<int> additions_;
  std::vector<Unit> prepared_;
};

}  // namespace warpwright
