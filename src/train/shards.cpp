#include "train/shards.hpp"

#include <algorithm>

namespace warpwright {

std::vector<std::vector<ShardPiece>> shards_of(const std::vector<Tensor>& tensors, int ranks) {
  std::int64_t all = 0;
  for (const Tensor& t : tensors) all += t.elements();
  std::vector<std::vector<ShardPiece>> shards(static_cast<std::size_t>(ranks));
  std::int64_t before = 0;  // elements of earlier blocks of rows
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t rows = tensors[i].shape[0];
    const std::int64_t columns = rows > 0 ? tensors[i].elements() / rows : 0;
    for (std::int64_t first = 0; first < rows; first += kShardRows) {
      const std::int64_t count = std::min(kShardRows, rows - first);
      // The rank in whose share of the elements the block begins.
      auto& shard = shards[static_cast<std::size_t>(before * ranks / all)];
      const bool continues = !shard.empty() && shard.back().tensor == i;
      if (continues) {
        shard.back().rows += count;
      } else {
        shard.push_back({i, first, count});
      }
      before += count * columns;
    }
  }
  return shards;
}

}  // namespace warpwright
