// The sum of a step's gradients over ranks.
//
// Each rank owns a shard of every unit, which may be empty. Ranks exchange the gradients of a unit as soon as
// its backward is done, and then each has its shard of their sum. There are two ways to share the slices:
//
// - Once: a rank runs a range of adjacent slices and adds them up. Their sums are exchanged in its last
// slice.
//
// - Each slice: in round j the R ranks run the adjacent slices j·R to j·R + R − 1, and exchange them at once.
// A rank then needs room for few layers' gradients, and for its shard of the partial sums.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/comm.hpp"
#include "model/decoder.hpp"
#include "runtime/context.hpp"
#include "train/shards.hpp"
#include "train/slice_tree.hpp"
#include "train/units.hpp"

namespace warpwright {

// The order in which the gradients of several ranks are added up, and who does it.
//   tree  by us, along a tree over the step's slices: the same bits for any number of ranks (tree_sum.hpp)
//   ring  by MPI or NCCL, in their own order: the bits depend on the number of ranks (library_sum.hpp)
enum class Reduce : std::uint8_t { tree, ring };
inline constexpr Reduce kReduces[] = {Reduce::tree, Reduce::ring};
std::string_view name_of(Reduce reduce);

// The gradients to be summed, and their division among ranks. The references must outlive the sum.
struct SumLayout {
  const Comm& comm;
  const Units& units;
  const Shards& shards;
  std::int64_t slices;  // of the step; a multiple of the number of ranks
  bool each_slice;

  std::int64_t slices_of_rank() const { return slices / comm.size(); }
  const ShardPieces& shard() const { return shards[static_cast<std::size_t>(comm.rank())]; }
};

class RankSum {
 public:
  RankSum(const RankSum&) = delete;
  RankSum& operator=(const RankSum&) = delete;
  virtual ~RankSum() = default;

  std::size_t rounds() const { return own_.additions.size(); }  // slices of this rank
  std::int64_t slice_of_rank(std::int64_t round) const;
  std::size_t depth() const { return own_.depth; }  // sets of gradients that this rank's slices need
  // Additions to make on the stack of these sets after the slice. Before the exchange, they are up to the
  // caller.
  int additions(std::size_t round) const { return own_.additions[round]; }
  // True if units are exchanged in the rank's slice of this round.
  bool exchanges(std::size_t round) const { return layout_.each_slice || round + 1 == rounds(); }

  // The inner lists have one tensor for each piece of this rank's shard.
  struct Memory {
    std::vector<std::vector<Tensor>> received;  // sums of other ranks
    std::vector<std::vector<Tensor>> levels;    // partial sums that outlive an exchange
  };
  // gradients: of all parameters.
  virtual Memory allocate(const std::vector<Tensor>& gradients, Allocator& allocator) const = 0;
  // sums: the stack of sets of this rank. Every rank makes this call, once the memory is there.
  virtual void prepare(const std::vector<DecoderParameters>& sums, const Memory& memory) = 0;
  // Exchanges the unit's gradients of this round, and adds them up. Every rank makes this call.
  virtual void run(Context& context, std::size_t unit, std::size_t round) const = 0;
  // This rank's shard of the step's gradients, after the last round.
  const std::vector<Tensor>& sum() const { return sum_; }

 protected:
  using Pieces = std::vector<Tensor>;

  // own: the sums over this rank's slices until an exchange.
  RankSum(const SumLayout& layout, SliceTree own) : layout_(layout), own_(std::move(own)) {}
  // The shard's place in partial sums that outlive an exchange.
  std::vector<Pieces> allocate_levels(std::size_t count, const std::vector<Tensor>& gradients,
                                      Allocator& allocator) const;
  // The unit's pieces of the sum, whose indices in the shard are `mine`.
  void set_sum(const std::vector<std::size_t>& mine, const Pieces& pieces);

  const SumLayout layout_;
  const SliceTree own_;

 private:
  Pieces sum_;
};

std::unique_ptr<RankSum> make_rank_sum(Reduce reduce, const SumLayout& layout);

}  // namespace warpwright
