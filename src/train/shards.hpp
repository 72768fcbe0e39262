// The parts of a model's tensors for which the ranks are responsible.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.hpp"

namespace warpwright {

// Rows of a tensor: all of them, or a range whose bounds are multiples of kShardRows or the tensor's end.
struct ShardPiece {
  std::size_t tensor = 0;
  std::int64_t first = 0, rows = 0;

  Tensor of(const std::vector<Tensor>& tensors) const { return tensors[tensor].slice(0, first, rows); }
  bool operator==(const ShardPiece&) const = default;
};
inline constexpr std::int64_t kShardRows = 128;

// Cuts the tensors, in order, into one shard for each rank, of about as many elements each. A function of the
// shapes and the number of ranks alone.
std::vector<std::vector<ShardPiece>> shards_of(const std::vector<Tensor>& tensors, int ranks);

}  // namespace warpwright
