// The part of a run's state that a rank writes into a checkpoint.
//
// All parts together are the whole state, whatever the ranks hold. A parameter is in one part as a whole, so
// that the files of weights are the shards of a Hugging Face folder. The optimizer is cut into the pieces of
// shards.hpp.
#pragma once

#include <vector>

#include "model/decoder.hpp"
#include "train/optimizer_shard.hpp"

namespace warpwright {

struct StatePart {
  DecoderParameters parameters;
  DecoderParameters optimizer;  // pieces: "m.wte.weight[0:128]", or "m.wte.weight" if it is all rows
  int files_of_weights = 1;     // of all ranks: the first ranks write one each

  std::size_t bytes() const;
};

// The rank that writes each of these parameters: the one with the fewest bytes so far.
std::vector<int> writers_of(const std::vector<Tensor>& parameters, int ranks);

// The optimizer's tensors for these pieces of the parameters, all of which the shard holds.
DecoderParameters optimizer_part(const DecoderParameters& parameters, const OptimizerShard& shard,
                                 const ShardPieces& pieces);

// Memory of the host for a copy of a part.
class Snapshot {
 public:
  // Pinned if the part is on a GPU.
  Snapshot(const StatePart& part, Device device);
  // A copy of a part of the same shapes, which lives as long as this object and until the next copy. Returns
  // when the stream has made it.
  StatePart copy_of(const StatePart& part, const Stream& stream) const;

 private:
  Buffer buffer_;
};

}  // namespace warpwright
