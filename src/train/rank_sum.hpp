// The sum of a step's gradients over ranks, along the same tree as on one rank.
//
// Each rank owns a shard of every unit, which may be empty. Ranks exchange the gradients of a unit as soon as
// its backward is done: each sends the others their shards of nodes of the tree (slice_tree.hpp), and then
// adds its own shard of all nodes. The exchange only moves bytes, so the bits are those of one rank. There
// are two ways:
//   once        A rank runs a range of adjacent slices. It adds up the largest nodes in this range, and they
//               are exchanged in its last slice.
//   each slice  In round j the ranks run the adjacent slices j·R to j·R + R − 1, and exchange them at once. A
//               rank then needs room for few layers' gradients, and its shard of the partial sums.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.hpp"
#include "model/decoder.hpp"
#include "runtime/context.hpp"
#include "train/shards.hpp"
#include "train/slice_tree.hpp"
#include "train/units.hpp"

namespace warpwright {

class RankSum {
 public:
  // slices: of the step; a multiple of the number of ranks.
  RankSum(const Comm& comm, const Units& units, const Shards& shards, std::int64_t slices, bool each_slice);

  std::size_t rounds() const { return own_.additions.size(); }  // slices of this rank
  std::int64_t slice_of_rank(std::int64_t round) const;
  std::size_t depth() const { return own_.depth; }  // sets of gradients that this rank's slices need
  // Additions to make on the stack of these sets after the slice. Before the exchange, they are up to the
  // caller.
  int additions(std::size_t round) const { return own_.additions[round]; }
  // True if units are exchanged in the rank's slice of this round.
  bool exchanges(std::size_t round) const { return each_slice_ || round + 1 == rounds(); }

  // The inner lists have one tensor for each piece of this rank's shard.
  struct Memory {
    std::vector<std::vector<Tensor>> received;  // nodes of other ranks
    std::vector<std::vector<Tensor>> levels;    // partial sums that outlive an exchange
  };
  // gradients: of all parameters.
  Memory allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const;
  // sums: the stack of sets of this rank. Every rank makes this call, once the memory is there.
  void prepare(const std::vector<DecoderParameters>& sums, const Memory& memory);
  // Exchanges the unit's gradients of this round, and adds them up. Every rank makes this call.
  void run(Context& context, std::size_t unit, std::size_t round) const;
  // This rank's shard of the step's gradients, after the last round.
  const std::vector<Tensor>& sum() const { return sum_; }

 private:
  using Pieces = std::vector<Tensor>;
  struct Node {
    int owner;
    std::size_t set;  // of the owner's stack
  };
  struct Unit {
    std::vector<std::size_t> mine;  // this rank's pieces: their indices in its shard
    std::vector<Pieces> nodes, levels;
    std::unique_ptr<const Comm::Exchange> exchange;
  };

  std::int64_t elements_of_largest_unit(const std::vector<Tensor>& gradients) const;
  const ShardPieces& shard() const { return shards_[static_cast<std::size_t>(comm_.rank())]; }

  const Comm& comm_;
  const Units& units_;
  const Shards& shards_;
  bool each_slice_;
  SliceTree own_;
  std::vector<Node> nodes_;  // of an exchange, in the tree's order
  // For each node of all rounds: the partial sums before it, and the additions after it.
  std::vector<std::size_t> heights_;
  std::vector<int> additions_;
  std::vector<Unit> prepared_;
  Pieces sum_;
};

}  // namespace warpwright
