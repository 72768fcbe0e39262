// A row's statistics and its normalization, for ops/layernorm and the operations fused with it.
#pragma once

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

// Two sums over a row in a fixed order: f(c, n, a, b) adds what the n lanes from c on have to either. Two
// vectors of each, so that the additions do not wait for each other, and others every 32 vectors, so that
// long rows lose no more than short ones.
struct TwoSums {
  float a, b;
};
template <class F>
inline TwoSums sum_row_twice(std::int64_t C, F&& f) {
  constexpr std::int64_t kBlock = 32 * kLanes;
  vec a = zero(), b = zero();
  for (std::int64_t begin = 0; begin < C; begin += kBlock) {
    const std::int64_t end = C - begin < kBlock ? C : begin + kBlock;
    vec a0 = zero(), a1 = zero(), b0 = zero(), b1 = zero();
    std::int64_t c = begin;
    for (; c + 2 * kLanes <= end; c += 2 * kLanes) {
      f(c, kLanes, a0, b0);
      f(c + kLanes, kLanes, a1, b1);
    }
    for (; c < end; c += kLanes) f(c, end - c < kLanes ? static_cast<int>(end - c) : kLanes, a0, b0);
    a += a0 + a1;
    b += b0 + b1;
  }
  return {sum(a), sum(b)};
}

struct RowStatistics {
  float mean, rstd;
};

template <class T>
inline float row_sum(const T* x, std::int64_t C) {
  return sum_row_twice(C, [=](std::int64_t c, int n, vec& a, vec&) { a += load_lanes(x + c, n); }).a;
}

// In two passes, of which the first gave the row's sum, and the second also finds what rounding left of Σ(x −
// mean): where that is more than half an ulp of the deviation, as in a constant row, it is put right. Not
// centered, the mean is 0 and rstd that of the root mean square.
template <class T>
inline RowStatistics statistics(const T* x, float sum, std::int64_t C, float eps, bool centered) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  const float mean = centered ? inverse_C * sum : 0;
  const vec m = set1(mean);
  const TwoSums sums = sum_row_twice(C, [=](std::int64_t c, int n, vec& a, vec& b) {
    vec d = load_lanes(x + c, n) - m;
    if (n < kLanes) d = keep(d, n, zero());
    a += d;
    b = fma(d, d, b);
  });
  const float squares = inverse_C * sums.b;
  float rest = centered ? inverse_C * sums.a : 0;
  if (rest * rest <= 0x1p-48f * squares) rest = 0;
  const float variance = squares - rest * rest;
  return {mean + rest, 1.0f / __builtin_sqrtf((variance < 0 ? 0 : variance) + eps)};
}
template <class T>
inline RowStatistics statistics(const T* x, std::int64_t C, float eps, bool centered = true) {
  return statistics(x, centered ? row_sum(x, C) : 0, C, eps, centered);
}

// A row that is written, and by which way: a tensor much larger than the caches goes past them, or each line
// of it would be read first.
template <class T>
struct RowOut {
  T* row;
  bool past_caches;

  void put(std::int64_t c, vec v, int n) const {
    if (past_caches && n == kLanes) {
      stream(row + c, v);
    } else {
      store_lanes(row + c, v, n);
    }
  }
};
// Past the caches where rows are whole lines of 64 bytes.
template <class T>
inline bool goes_past_caches(const T* first, std::int64_t rows, std::int64_t C) {
  constexpr std::int64_t kLeast = std::int64_t{8} << 20, kLine = 64;
  const auto row_bytes = C * static_cast<std::int64_t>(sizeof(T));
  return rows * row_bytes >= kLeast && row_bytes % kLine == 0 &&
         reinterpret_cast<std::uintptr_t>(first) % kLine == 0;
}

// weight and bias may be null: 1 and 0.
template <class X, class P>
inline vec normalized(const X* x, vec mean, vec rstd, const P* weight, const P* bias, std::int64_t c, int n) {
  const vec y = (load_lanes(x + c, n) - mean) * rstd;
  if (bias) return fma(y, load_lanes(weight + c, n), load_lanes(bias + c, n));
  return weight ? y * load_lanes(weight + c, n) : y;
}
// ahead(c) prefetches what of the next row stands at c: the arithmetic here hides its way from memory.
template <class X, class P, class O, class Ahead>
inline void normalize(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                      std::int64_t C, const Ahead& ahead) {
  const vec m = set1(s.mean), r = set1(s.rstd);
  for_each_vector(0, C, [=](std::int64_t c, int n) {
    ahead(c);
    out.put(c, normalized(x, m, r, weight, bias, c, n), n);
  });
}
// The same, and the sum of the next row, so that this comes from memory once and is not read again for it.
template <class X, class P, class O>
inline float normalize_and_sum(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                               std::int64_t C, const X* next) {
  constexpr std::uintptr_t kAhead = 1024;  // bytes, which may lie behind the tensor's end: nothing faults
  const vec m = set1(s.mean), r = set1(s.rstd);
  return sum_row_twice(
             C,
             [=](std::int64_t c, int n, vec& sum, vec&) {
               prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(next + c) + kAhead));
               out.put(c, normalized(x, m, r, weight, bias, c, n), n);
               sum += load_lanes(next + c, n);
             })
      .a;
}

}  // namespace
}  // namespace warpwright::ops::simd
