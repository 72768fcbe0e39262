// Attention of a few queries over many keys (decoding from a cache), one query at a time. Keys and values are
// read in place, once per query. Memory-bound: 2 · HS elements and 4 · HS FLOP per key.
//
// On one core of a Sapphire Rapids class machine, one query, 12 heads of 64, fp32:
//   8,192 keys (50 MB)  14 GB/s (6 without the prefetches)      1,024 keys (6 MB)  17 GB/s
#pragma once

#include "ops/attention/cpu/product.hpp"
#include "ops/cpu/online_softmax.hpp"

namespace warpwright::ops::attention {
namespace {

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
  const Range keys = head.sequence.keys_seen(i, 1);
  for (std::int64_t k0 = keys.begin; k0 < keys.end; k0 += kBlock) {
    const std::int64_t nk = at_most(kBlock, keys.end - k0);
    prefetch(head.v.from(k0), nk, HS);
    for (std::int64_t j = 0; j < nk; ++j) scores[j] = dot(query, head.k[k0 + j], HS);
    const float factor = softmax.update(scores, nk);
    prefetch(head.k.from(k0 + kBlock), at_most(kBlock, keys.end - k0 - kBlock), HS);
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
