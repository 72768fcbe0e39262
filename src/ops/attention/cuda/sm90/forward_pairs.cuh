// A bias and a mask for each sequence.
//
// The bias: with every block of keys come boxes of 64 queries and 64 keys, one for each head of the tile.
// Warps read them by ldmatrix, because its fragments have the layout of the scores. The copy engine swizzles
// the boxes, so that the eight rows that a warp reads at a time are in different banks.
//
// The mask: pack_mask() makes words from it before, one for each thread of a group and each tile of 64
// queries and 64 keys. All heads read the same words, from the second-level cache.
#pragma once

#include "ops/attention/cuda/sm90/jobs.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// The boxes of the bias in a stage of shared memory.
template <class S>
class BiasTiles {
 public:
  static constexpr int kRowGroups = S::kRows / kBox, kStageBytes = kRowGroups * S::kHeads * kBoxBytes;

  __device__ BiasTiles(const ForwardParameters& p, std::byte* tiles, int stage)
      : p_(p), boxes_(tiles + stage * kStageBytes) {}

  // One thread copies the boxes of the queries that exist, from this key on.
  __device__ void copy(const CUtensorMap& map, Barrier* full, const Tile& tile, int key) const {
    const int groups = (tile.rows + kBox - 1) / kBox;
    arrive_expecting(full, groups * S::kHeads * kBoxBytes);
    for (int group = 0; group < groups; ++group) {
#pragma unroll
      for (int side = 0; side < S::kHeads; ++side) {
        copy_box(box_of(group, side), &map, full, key, tile.first + group * kBox,
                 p_.bias.places.head ? tile.head * S::kHeads + side : 0,
                 p_.bias.places.sequence ? tile.sequence : 0);
      }
    }
  }

  // Scales a group's products and adds the bias.
  __device__ void add_to(float (&s)[S::kKeys / 2], int group, int side, const Lane& lane) const {
    const int in_warp = lane.thread % 32, row = lane.thread / 32 * 16 + in_warp % 16;
    const std::uint32_t first = shared_address(box_of(group, side)) + static_cast<std::uint32_t>(row * 128) +
                                static_cast<std::uint32_t>(in_warp / 16 ^ row % 8) * 16;
#pragma unroll
    for (int step = 0; step < S::kKeys / 16; ++step) {
      std::uint32_t pairs[4];
      load_matrices(pairs, first ^ static_cast<std::uint32_t>(step * 32));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 bias = unpack(pairs[i], typename S::T{});
        float &left = s[8 * step + 2 * i], &right = s[8 * step + 2 * i + 1];
        left = fmaf(left, p_.scale, bias.x);
        right = fmaf(right, p_.scale, bias.y);
      }
    }
  }

 private:
  static_assert(S::kKeys == kBox && S::kShares == 1 && !S::kPacked);

  __device__ std::byte* box_of(int group, int side) const {
    return boxes_ + (group * S::kHeads + side) * kBoxBytes;
  }

  const ForwardParameters& p_;
  std::byte* boxes_;
};

// The words of a mask. Bit i of a word tells whether element i of the thread's scores (Lane) is seen.
struct MaskWords {
  std::uint32_t* data = nullptr;  // (sequences, query tiles, key tiles, kGroupThreads); null: all is seen
  int query_tiles = 0, key_tiles = 0;

  __host__ __device__ std::int64_t at(std::int64_t sequence, int query_tile, int key_tile) const {
    return ((sequence * query_tiles + query_tile) * key_tiles + key_tile) * kGroupThreads;
  }
  // The thread's word for the tile that begins with this query and key. Queries see all keys beyond the mask.
  __device__ std::uint32_t of(int sequence, int query, int key, int thread) const {
    const bool has = data && key >= 0 && query / kBox < query_tiles && key / kBox < key_tiles;
    return has ? data[at(sequence, query / kBox, key / kBox) + thread] : ~0u;
  }
};

template <int kCount>
__device__ void hide_unseen(float (&s)[kCount], std::uint32_t word) {
  static_assert(kCount == 32);
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = (word >> i & 1) != 0 ? s[i] : -INFINITY;
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
