#include <immintrin.h>

#include "runtime/cpu/ceiling_kernels.hpp"

namespace warpwright::ceiling::avx512_bf16 {
namespace {

// Independent sums in flight: more than any present core's latency (6 to 10 cycles) times its instructions a
// cycle (½ to 2).
constexpr int kSums = 20;

}  // namespace

float multiply_add(std::int64_t iterations) {
  // 1·1 + 1·(−1): the sums keep their values, which are far from any slow one.
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(0x3f80bf80)));
  __m512 sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = _mm512_set1_ps(static_cast<float>(k));
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 20
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], a, b);
  }
  for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
  return _mm512_cvtss_f32(sums[0]);
}

// 16 sums of two multiply-adds in each register.
double flops_per_iteration() {
  return kSums * 2.0 * 16 * 2;
}

}  // namespace warpwright::ceiling::avx512_bf16
