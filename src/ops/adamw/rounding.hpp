// Stochastic rounding to bf16. A number becomes one of its two neighbours at random; the nearer one is more
// likely. The mean of the results is the number itself, so that updates far below half a step are not lost.
// Source: S. Gupta et al., "Deep Learning with Limited Numerical Precision", arXiv:1502.02551.
//
// bf16 is the upper half of an fp32. 16 random bits are added to the lower half. The probability of a carry
// is exactly lower half / 2^16, and a number that bf16 represents stays as it is. A number beyond the largest
// finite one (also an infinity or NaN) is rounded to nearest. The functions are constexpr because GPU kernels
// call them, too.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/philox.hpp"

namespace warpwright::ops::adamw_kernels {

inline constexpr std::uint32_t kRounding = 0x524f554e;  // "ROUN": its own stream of random numbers
inline constexpr std::uint32_t kLargestFinite = 0x7f7f0000;
inline constexpr int kRandomElements = 8;  // one call of Philox gives the bits of this many

// The random bits of a tensor's kRandomElements elements from kRandomElements · block on. `random` (3) holds
// the seed and the step. (The bits repeat after 2^35 elements.)
constexpr PhiloxCounter random_block(const std::int32_t* random, std::uint32_t tensor, std::int64_t block) {
  const PhiloxKey seed{static_cast<std::uint32_t>(random[0]), static_cast<std::uint32_t>(random[1])};
  return philox({static_cast<std::uint32_t>(block), tensor, kRounding, static_cast<std::uint32_t>(random[2])},
                seed);
}

// The bits of element j of the eight: the words' halves, the lower one first.
constexpr std::uint32_t random_half(const PhiloxCounter& block, int j) {
  const std::uint32_t low = j < 4 ? block[0] : block[2], high = j < 4 ? block[1] : block[3];
  return ((j % 4 < 2 ? low : high) >> (16 * (j % 2))) & 0xffffu;
}

// The result is representable in bf16, or it lies beyond bf16's largest finite number.
constexpr float stochastically_rounded(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7fffffffu) > kLargestFinite ? value : std::bit_cast<float>((bits + random) & 0xffff0000u);
}

}  // namespace warpwright::ops::adamw_kernels
