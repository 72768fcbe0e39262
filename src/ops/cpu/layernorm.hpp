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

// In two passes, of which the second also finds what rounding left of Σ(x − mean): where that is more than
// half an ulp of the deviation, as in a constant row, it is put right. Not centered, the mean is 0 and rstd
// that of the root mean square.
template <class T>
inline RowStatistics statistics(const T* x, std::int64_t C, float eps, bool centered = true) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  float mean = 0;
  if (centered) {
    mean = inverse_C *
           sum_row_twice(C, [=](std::int64_t c, int n, vec& a, vec&) { a += load_lanes(x + c, n); }).a;
  }
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

// weight and bias may be null: 1 and 0. ahead(c) prefetches what of the next row stands at c: the arithmetic
// here hides its way from memory.
template <class X, class P, class O, class Ahead>
inline void normalize(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                      std::int64_t C, const Ahead& ahead) {
  const vec m = set1(s.mean), r = set1(s.rstd);
  for_each_vector(0, C, [=](std::int64_t c, int n) {
    ahead(c);
    vec y = (load_lanes(x + c, n) - m) * r;
    if (bias) {
      y = fma(y, load_lanes(weight + c, n), load_lanes(bias + c, n));
    } else if (weight) {
      y = y * load_lanes(weight + c, n);
    }
    out.put(c, y, n);
  });
}

}  // namespace
}  // namespace warpwright::ops::simd
