// The shares of a Stream-K product's tiles that its workers get (ops/matmul/cuda/schedule.cuh). Pure
// arithmetic, used by the device (in 32 bits) and by the host.
#pragma once

#include <type_traits>

namespace warpwright::roofline {

// Tiles that one worker computes whole, before the cut ones. These are all tiles if they fill the workers
// evenly.
template <class Int>
constexpr Int whole_tiles(Int tiles, std::type_identity_t<Int> workers) {
  const Int rest = tiles % workers;
  if (rest == 0) return tiles;
  return tiles < workers ? 0 : tiles - rest - workers;
}

// The fewest slabs in a worker's share, or one whole tile if that has fewer.
inline constexpr int kLeastShare = 4;

// Workers that share the cut tiles, of `depth` slabs each. Some workers get none if a share would be a very
// small part of a tile.
template <class Int>
constexpr Int sharers_of(Int slabs, std::type_identity_t<Int> depth, std::type_identity_t<Int> workers) {
  if (slabs == 0) return 1;
  const Int most = slabs / (depth < kLeastShare ? depth : kLeastShare);
  return most < 1 ? 1 : most < workers ? most : workers;
}
// The slab at which worker w's share of the cut tiles begins: ⌊slabs · w / sharers⌋. slabs · w could
// overflow, so this form does not compute it.
template <class Int>
constexpr Int share_begin(Int slabs, std::type_identity_t<Int> sharers, std::type_identity_t<Int> w) {
  const Int n = w < sharers ? w : sharers;
  return slabs / sharers * n + slabs % sharers * n / sharers;
}

}  // namespace warpwright::roofline
