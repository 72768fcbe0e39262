// AVX512_BF16's vdpbf16ps: it adds the products of two pairs of bf16 to each of 16 fp32. Only for files that
// are compiled with AVX512_BF16.
#pragma once

#include <immintrin.h>

#include "runtime/device.hpp"

namespace warpwright::ops::simd {
namespace {

inline __m512bh load_pairs(const void* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}
inline __m512bh broadcast_pair(const void* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// The cost of a kernel on vdpbf16ps. If the instruction is slow, the kernel comes after those of fp32.
template <class Problem>
double cost_of_dot(const Problem&, const DeviceInfo& device) {
  return device.cpu.fast_bf16_dot() ? 0 : 1;
}

}  // namespace
}  // namespace warpwright::ops::simd
