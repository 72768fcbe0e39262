// The sum of a step's gradients over ranks, along the same tree as on one rank.
//
// Each rank has an equal range of the step's slices, and has added up the largest nodes of the tree in it
// (slice_tree.hpp). It sends each rank its shard of these nodes. Each rank then adds its shard of all nodes
// along the tree. The exchange only moves bytes, so the bits are those of one rank. On a GPU it comes in the
// stream's order.
#pragma once

#include <vector>

#include "comm/comm.hpp"
#include "model/decoder.hpp"
#include "train/shards.hpp"
#include "train/slice_tree.hpp"

namespace warpwright {

class RankSum {
 public:
  // slices: of the step; a multiple of the number of ranks.
  RankSum(const Comm& comm, std::int64_t slices);

  // The tree over this rank's slices.
  const SliceTree& own() const { return own_; }
  // The shards of other ranks' nodes, for the gradients' shapes.
  std::vector<std::vector<Tensor>> allocate_received(const Shards& shards, const DecoderParameters& gradients,
                                                     Allocator& allocator) const;
  // sums: the stack of partial sums after this rank's last slice. Leaves this rank's shard of the step's
  // gradients in the lowest.
  void run(Context& context, const Shards& shards, const std::vector<DecoderParameters>& sums,
           const std::vector<std::vector<Tensor>>& received) const;

 private:
  using Pieces = std::vector<Tensor>;

  // This rank's shard of every node, in the tree's order.
  std::vector<Pieces> exchanged(const Shards& shards, const std::vector<DecoderParameters>& sums,
                                const std::vector<Pieces>& received, const Stream& stream) const;

  const Comm& comm_;
  SliceTree own_, all_;      // all_: over every rank's nodes
  std::vector<int> owners_;  // of all_'s nodes
};

}  // namespace warpwright
