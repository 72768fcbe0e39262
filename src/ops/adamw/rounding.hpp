// Stochastic rounding to bf16: to one neighbour or the other, the more often the nearer it is, so that the
// mean of what is stored is the number itself and updates far below half a step are not lost.
// Source: S. Gupta et al., "Deep Learning with Limited Numerical Precision", arXiv:1502.02551.
//
// bf16 is the upper half of an fp32. To the lower half 16 random bits are added; the probability of a carry
// is lower half / 2^16 exactly, and what bf16 has stays as it is. A number beyond the largest finite one (an
// infinity or NaN among them) is rounded to nearest. constexpr: for a GPU's kernels too.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/philox.hpp"

namespace warpwright::ops::adamw_kernels {

inline constexpr std::uint32_t kRounding = 0x524f554e;  // a stream of random numbers of its own: "ROUN"
inline constexpr std::uint32_t kLargestFinite = 0x7f7f0000;
inline constexpr int kRandomElements = 8;  // whose bits one call of Philox gives

// The random bits of a tensor's elements from kRandomElements · block on, for the seed and step that `random`
// (3) holds. (Elements past 2^35 have those of elements before.)
constexpr PhiloxCounter random_block(const std::int32_t* random, std::uint32_t tensor, std::int64_t block) {
  const PhiloxKey seed{static_cast<std::uint32_t>(random[0]), static_cast<std::uint32_t>(random[1])};
  return philox({static_cast<std::uint32_t>(block), tensor, kRounding, static_cast<std::uint32_t>(random[2])},
                seed);
}

// Those of element j of the eight, j in [0, 8): the words' halves, the lower one first.
constexpr std::uint32_t random_half(const PhiloxCounter& block, int j) {
  const std::uint32_t low = j < 4 ? block[0] : block[2], high = j < 4 ? block[1] : block[3];
  return ((j % 4 < 2 ? low : high) >> (16 * (j % 2))) & 0xffffu;
}

// A number that bf16 has, or one beyond its largest.
constexpr float stochastically_rounded(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7fffffffu) > kLargestFinite ? value : std::bit_cast<float>((bits + random) & 0xffff0000u);
}

}  // namespace warpwright::ops::adamw_kernels
