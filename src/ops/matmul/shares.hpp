// How the workers of a Stream-K product share its tiles (cuda/schedule.cuh): arithmetic alone, for device and
// host.
#pragma once

#include <cstdint>

namespace warpwright::ops::matmul {

// Tiles that are made whole before those that are cut.
constexpr std::int64_t whole_tiles(std::int64_t tiles, int workers) {
  const std::int64_t rest = tiles % workers;
  if (rest == 0) return tiles;
  return tiles < workers ? 0 : tiles - rest - workers;
}

// Workers that share the cut tiles, of `depth` slabs each: fewer than all where a share would be a very small
// part of a tile.
constexpr int sharers_of(std::int64_t slabs, std::int64_t depth, int workers) {
  constexpr std::int64_t kLeastShare = 4;
  const std::int64_t most = slabs / (depth < kLeastShare ? depth : kLeastShare);
  return most < 1 ? 1 : most < workers ? static_cast<int>(most) : workers;
}
// Where worker w's share of the cut tiles begins, in slabs.
constexpr std::int64_t share_begin(std::int64_t slabs, int sharers, int w) {
  return slabs * (w < sharers ? w : sharers) / sharers;
}

}  // namespace warpwright::ops::matmul
