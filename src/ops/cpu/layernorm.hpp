// A row's statistics and its normalization, for ops/layernorm and the operations fused with it.
#pragma once

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

// Σ f(c) over a row in a fixed order: four running vectors, so that the additions do not wait for each other.
template <class F>
inline float sum_row(std::int64_t C, F&& f) {
  vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= C; c += 4 * kLanes) {
    s0 += f(c, kLanes);
    s1 += f(c + kLanes, kLanes);
    s2 += f(c + 2 * kLanes, kLanes);
    s3 += f(c + 3 * kLanes, kLanes);
  }
  for (; c + kLanes <= C; c += kLanes) s0 += f(c, kLanes);
  if (c < C) s1 += f(c, static_cast<int>(C - c));
  return sum((s0 + s1) + (s2 + s3));
}

struct RowStatistics {
  float mean, rstd;
};

// Not centered, the mean is 0 and rstd that of the root mean square.
template <class T>
inline RowStatistics statistics(const T* x, std::int64_t C, float eps, bool centered = true) {
  float mean = 0;
  if (centered) {
    mean = sum_row(C, [&](std::int64_t c, int n) { return load_lanes(x + c, n); }) / static_cast<float>(C);
  }
  const vec m = set1(mean);
  const float square = sum_row(C, [&](std::int64_t c, int n) {
    const vec d = load_lanes(x + c, n) - m;
    return n == kLanes ? d * d : keep(d * d, n, zero());
  });
  return {mean, 1.0f / __builtin_sqrtf(square / static_cast<float>(C) + eps)};
}

// weight and bias may be null: 1 and 0.
template <class X, class P, class O>
inline void normalize(const X* x, RowStatistics s, const P* weight, const P* bias, O* out, std::int64_t C) {
  const vec m = set1(s.mean), r = set1(s.rstd);
  for (std::int64_t c = 0; c < C; c += kLanes) {
    const int n = C - c < kLanes ? static_cast<int>(C - c) : kLanes;
    vec y = (load_lanes(x + c, n) - m) * r;
    if (bias) {
      y = fma(y, load_lanes(weight + c, n), load_lanes(bias + c, n));
    } else if (weight) {
      y = y * load_lanes(weight + c, n);
    }
    store_lanes(out + c, y, n);
  }
}

}  // namespace
}  // namespace warpwright::ops::simd
