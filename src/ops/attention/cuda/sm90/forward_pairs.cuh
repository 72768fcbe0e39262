// The tiles of a bias and of a mask for each sequence, which come with every block of keys.
//
// A box has 64 queries of the bias of one head, or of the mask. Warps read the bias by ldmatrix, because its
// fragments have the layout of the scores, and threads read the mask two bytes at a time. The copy engine
// swizzles the boxes, so that the eight rows that a warp reads at a time are in different banks.
#pragma once

#include "ops/attention/cuda/sm90/jobs.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// A stage of boxes in shared memory: first the bias in all stages, then the mask in all stages. What is not
// given takes no memory.
template <class S>
class PairTiles {
 public:
  __host__ __device__ static constexpr int stage_bytes(bool bias, bool visible) {
    return kRowGroups * ((bias ? S::kHeads * kBiasBytes : 0) + (visible ? kMaskBytes : 0));
  }

  __device__ PairTiles(const ForwardParameters& p, std::byte* tiles, int stage)
      : p_(p),
        bias_(tiles + stage * stage_bytes(true, false)),
        mask_(tiles + (p.bias.data ? S::kStages * stage_bytes(true, false) : 0) +
              stage * stage_bytes(false, true)) {}

  // One thread copies the boxes of the queries that exist, from this key on.
  __device__ void copy(const CUtensorMap& bias, const CUtensorMap& visible, Barrier* full, const Tile& tile,
                       int key) const {
    const int groups = (tile.rows + kBox - 1) / kBox;
    arrive_expecting(full, groups * (stage_bytes(p_.bias.data, p_.visible.data) / kRowGroups));
    for (int group = 0; group < groups; ++group) {
      const int row = tile.first + group * kBox;
      if (p_.bias.data) {
#pragma unroll
        for (int side = 0; side < S::kHeads; ++side) {
          copy_box(bias_of(group, side), &bias, full, key, row,
                   p_.bias.places.head ? tile.head * S::kHeads + side : 0,
                   p_.bias.places.sequence ? tile.sequence : 0);
        }
      }
      if (p_.visible.data) {
        copy_box(mask_ + group * kMaskBytes, &visible, full, key, row, 0,
                 p_.visible.places.sequence ? tile.sequence : 0);
      }
    }
  }

  // Adds the bias to a group's scaled products, and hides keys. Without a bias, products stay products.
  __device__ void change(float (&s)[S::kKeys / 2], int group, int side, const Lane& lane) const {
    if (p_.bias.data) add_bias(s, bias_of(group, side), lane);
    if (p_.visible.data) hide_keys(s, mask_ + group * kMaskBytes, lane);
  }

 private:
  static constexpr int kRowGroups = S::kRows / kBox;
  static constexpr int kRowBytes = S::kKeys;  // of the mask
  static constexpr int kBiasBytes = kBoxBytes, kMaskBytes = kBox * kRowBytes;
  static_assert(S::kKeys == 64 && S::kShares == 1 && !S::kPacked);

  __device__ std::byte* bias_of(int group, int side) const {
    return bias_ + (group * S::kHeads + side) * kBiasBytes;
  }

  __device__ void add_bias(float (&s)[S::kKeys / 2], const std::byte* box, const Lane& lane) const {
    const int in_warp = lane.thread % 32, row = lane.thread / 32 * 16 + in_warp % 16;
    const std::uint32_t first = shared_address(box) + static_cast<std::uint32_t>(row * 128) +
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

  __device__ static void hide_keys(float (&s)[S::kKeys / 2], const std::byte* box, const Lane& lane) {
    const int row = lane.row(0);
    const int first = row * kRowBytes + row / 2 % 4 * 16 + lane.column();  // swizzled by 64 bytes
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; i += 2) {
      const int column = i / 4 * 8;
      const std::byte* two = box + (first ^ column / 16 * 16) + column % 16 + i / 2 % 2 * 8 * kRowBytes;
      const std::uint32_t seen = *reinterpret_cast<const std::uint16_t*>(two);
      s[i] = (seen & 0xff) != 0 ? s[i] : -INFINITY;
      s[i + 1] = seen >= 0x100 ? s[i + 1] : -INFINITY;
    }
  }

  const ForwardParameters& p_;
  std::byte *bias_, *mask_;
};

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
