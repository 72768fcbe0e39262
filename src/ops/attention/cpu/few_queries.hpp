// Attention of a few queries over many keys (decoding from a cache), one query at a time. Keys and values are
// read in place, once per query. Memory-bound: 2 · HS elements and 4 · HS FLOP per key.
//
// On one core of a Sapphire Rapids class machine, one query, 12 heads of 64, fp32:
//   8,192 keys (50 MB)  14 GB/s (6 without the prefetches)      1,024 keys (6 MB)  17 GB/s
#pragma once

#include "ops/attention/cpu/product.hpp"

namespace warpwright::ops::attention {
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

// out[d] = factor · out[d] + Σ_j p[j] v[j][d]
template <class T>
inline void add_values(float* out, float factor, const float* p, Rows<const T> v, std::int64_t keys,
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
      largest = ops::simd::max(largest, keep(load(scores + j), n, largest));
    });
    const float now = maximum(largest);
    const float factor = now == -__builtin_inff() ? 1 : __builtin_exp2f(max - now);
    vec total = zero();
    for_each_vector(0, keys, [&](std::int64_t j, int n) {
      const vec p = keep(exp2(load(scores + j) - set1(now)), n, zero());
      total = total + p;
      store(scores + j, p);
    });
    max = now;
    sum = sum * factor + ops::simd::sum(total);
    return factor;
  }
  float lse() const { return sum == 0 ? -__builtin_inff() : (max + __builtin_log2f(sum)) * kLn2; }
};

// Fewer queries are processed one by one, because a tile has at least as many lanes as a vector.
constexpr std::int64_t kFewQueries = 4;

// Processes query i. scratch: 2 · HS (padded to kLanes) and kBlock floats.
template <class T>
inline void forward_query(const ForwardHead<T>& head, std::int64_t i, float* scratch) {
  const std::int64_t HS = head.HS, ld = round_up(HS, kLanes);
  float *query = scratch, *sums = scratch + ld, *scores = scratch + 2 * ld;
  pack(head.q.from(i), 1, HS, query, ld, 1);
  for (std::int64_t d = 0; d < ld; d += kLanes) store(query + d, load(query + d) * set1(head.scale * kLog2E));
  clear(sums, ld);
  Softmax softmax;
  const std::int64_t keys = keys_seen_before(head.sequence, i + 1);
  for (std::int64_t k0 = 0; k0 < keys; k0 += kBlock) {
    const std::int64_t nk = at_most(kBlock, keys - k0);
    prefetch(head.v.from(k0), nk, HS);
    for (std::int64_t j = 0; j < nk; ++j) scores[j] = dot(query, head.k[k0 + j], HS);
    const float factor = softmax.update(scores, nk);
    prefetch(head.k.from(k0 + kBlock), at_most(kBlock, keys - k0 - kBlock), HS);
    add_values(sums, factor, scores, head.v.from(k0), nk, HS);
  }
  const vec inverse = set1(softmax.sum == 0 ? 0 : 1 / softmax.sum);
  for_each_vector(0, HS, [&](std::int64_t d, int lanes) {
    store_lanes(head.out[i] + d, load(sums + d) * inverse, lanes);
  });
  if (head.lse) head.lse[i] = softmax.lse();
}

template <class T>
inline void forward_queries(const ForwardHead<T>& head, float* scratch) {
  for (std::int64_t i = 0; i < head.sequence.queries; ++i) forward_query(head, i, scratch);
}

}  // namespace
}  // namespace warpwright::ops::attention
