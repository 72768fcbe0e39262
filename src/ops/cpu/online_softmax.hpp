// Attention of one query, a few keys at a time: scores, online softmax and the sum of the values.
#pragma once

#include <cstdint>

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// Σ_d a[d]·b[d]
template <class A, class B>
inline float dot(const A* a, const B* b, std::int64_t HS) {
  vec sum0 = zero(), sum1 = zero();
  std::int64_t d = 0;
  for (; d + 2 * kLanes <= HS; d += 2 * kLanes) {
    sum0 = fma(load(a + d), load(b + d), sum0);
    sum1 = fma(load(a + d + kLanes), load(b + d + kLanes), sum1);
  }
  for_each_vector(d, HS, [&](std::int64_t tail, int n) {
    sum0 = fma(load_lanes(a + tail, n), load_lanes(b + tail, n), sum0);
  });
  return sum(sum0 + sum1);
}

// out[d] = factor · out[d] + Σ_j p[j] v[j][d], where v[j] points to a row. The length of out is padded to
// whole vectors.
template <class Rows>
inline void add_values(float* out, float factor, const float* p, const Rows& v, std::int64_t keys,
                       std::int64_t HS) {
  for_each_vector(0, HS, [&](std::int64_t d, int lanes) {
    vec even = load(out + d) * set1(factor), odd = zero();
    std::int64_t j = 0;
    for (; j + 1 < keys; j += 2) {
      even = fma(set1(p[j]), load_lanes(v[j] + d, lanes), even);
      odd = fma(set1(p[j + 1]), load_lanes(v[j + 1] + d, lanes), odd);
    }
    if (j < keys) even = fma(set1(p[j]), load_lanes(v[j] + d, lanes), even);
    store(out + d, even + odd);
  });
}

struct Softmax {
  float max = -__builtin_inff(), sum = 0;  // of the scores so far, in units of ln 2

  // Replaces scores by exp(score − max) and returns the factor for the sums so far. Scores and sums have
  // lengths that are multiples of kLanes.
  float update(float* scores, std::int64_t keys) {
    vec largest = set1(max);
    for_each_vector(0, keys, [&](std::int64_t j, int n) {
      largest = simd::max(largest, keep(load(scores + j), n, largest));
    });
    const float now = maximum(largest);
    const float base = now == -__builtin_inff() ? 0 : now;  // without any finite score, exponentials are 0
    const float factor = __builtin_exp2f(max - base);
    vec total = zero();
    for_each_vector(0, keys, [&](std::int64_t j, int n) {
      const vec p = keep(exp2(load(scores + j) - set1(base)), n, zero());
      total = total + p;
      store(scores + j, p);
    });
    max = now;
    sum = sum * factor + simd::sum(total);
    return factor;
  }
  float lse() const { return sum == 0 ? -__builtin_inff() : (max + __builtin_log2f(sum)) * kLn2; }
};

}  // namespace
}  // namespace warpwright::ops::simd
