// Gradients and parameters that are whole on no rank, but for one layer at a time.
//
// A step's parameters form units: one for each layer, and one of all others. With Sharding::gradients a rank
// sends the gradients of a unit to their owners as soon as its backward is done, for each slice. In round j
// the ranks run the adjacent slices j·R to j·R + R − 1, so an owner adds what it receives at once, along the
// tree (slice_tree.hpp). With Sharding::parameters a rank keeps its shard of the parameters alone, and
// gets a unit from the others before it is used.
#pragma once

#include <vector>

#include "comm/comm.hpp"
#include "model/decoder.hpp"
#include "runtime/context.hpp"
#include "train/shards.hpp"

namespace warpwright {

// One tensor per parameter, as Decoder::allocate_parameters() gives them, but all layers share the place of
// one.
DecoderParameters allocate_one_layer(const Decoder& decoder, DType dtype, Category category,
                                     std::string_view prefix, Allocator& allocator);

// Like shards_of(), but each unit is cut by itself, so that every rank owns a part of each.
Shards shards_by_layer(const Decoder& decoder, const std::vector<Tensor>& parameters, int ranks);

class LayerShards {
 public:
  // slices: of the step; a multiple of the number of ranks.
  LayerShards(const Comm& comm, const Decoder& decoder, const Shards& shards, std::int64_t slices);

  std::size_t others() const { return units_.size() - 1; }  // the unit of the parameters outside the layers

  struct Sums {
    std::vector<std::vector<Tensor>> levels;  // the tree's partial sums, by piece of this rank's shard
    std::vector<Tensor> received;             // from each other rank
  };
  // gradients: of all parameters.
  Sums allocate_sums(const std::vector<Tensor>& gradients, Allocator& allocator) const;
  // Adds the gradients that every rank's slice of this round has for the unit. After the last round the
  // lowest level holds this rank's shard of the step's gradients. Every rank makes this call.
  void add(Context& context, std::size_t unit, std::int64_t round, const std::vector<Tensor>& gradients,
           const Sums& sums) const;
  // Fills the unit's tensors of `whole` from the ranks' pieces. stored: this rank's. Every rank makes this
  // call.
  void gather(std::size_t unit, const std::vector<Tensor>& stored, const std::vector<Tensor>& whole,
              const Stream& stream) const;

 private:
  struct Unit {
    Shards pieces;
    std::vector<std::size_t> mine;  // this rank's of them: their indices in its shard
  };

  void push(Context& context, std::size_t leaf, const std::vector<std::size_t>& indices,
            const std::vector<Tensor>& addends, const Sums& sums) const;
  const ShardPieces& of_rank(const Shards& shards) const {
    return shards[static_cast<std::size_t>(comm_.rank())];
  }

  const Comm& comm_;
  ShardPieces shard_;  // this rank's
  std::vector<Unit> units_;
  // For each slice: the partial sums before it, and the additions after it.
  std::vector<std::size_t> heights_;
  std::vector<int> additions_;
  std::size_t depth_ = 0;
};

}  // namespace warpwright
