// How the workers of a Stream-K product share its tiles (cuda/schedule.cuh): arithmetic alone, for device (in
// 32 bits) and host.
#pragma once

#include <cstdint>

namespace warpwright::ops::matmul {

// Tiles that are made whole before those that are cut.
template <class Int>
constexpr Int whole_tiles(Int tiles, int workers) {
  const Int rest = tiles % workers;
  if (rest == 0) return tiles;
  return tiles < workers ? 0 : tiles - rest - workers;
}

// Workers that share the cut tiles, of `depth` slabs each: fewer than all where a share would be a very small
// part of a tile.
template <class Int>
constexpr int sharers_of(Int slabs, Int depth, int workers) {
  constexpr Int kLeastShare = 4;
  if (slabs == 0) return 1;
  const Int most = slabs / (depth < kLeastShare ? depth : kLeastShare);
  return most < 1 ? 1 : most < workers ? static_cast<int>(most) : workers;
}
// Where worker w's share of the cut tiles begins, in slabs: ⌊slabs · w / sharers⌋, without the product.
template <class Int>
constexpr Int share_begin(Int slabs, int sharers, int w) {
  const int n = w < sharers ? w : sharers;
  return slabs / sharers * n + slabs % sharers * n / sharers;
}

}  // namespace warpwright::ops::matmul
