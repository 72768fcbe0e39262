// Shared by the backward kernels: the constants of a query, and the conversion of fp32 sums to gradients.
#pragma once

#include "ops/attention/cpu/few_queries.hpp"

namespace warpwright::ops::attention {
namespace {

// For `queries` of `padded` queries from q0 on: lse in units of ln 2, and dout·out. A query that sees no key,
// and padding, gets lse = inf, so that its probabilities are 0.
template <class T>
inline void query_sums(const BackwardHead<T>& head, std::int64_t q0, std::int64_t queries,
                       std::int64_t padded, float* lse, float* d) {
  for (std::int64_t i = 0; i < padded; ++i) {
    const bool sees = i < queries && head.lse[q0 + i] != -__builtin_inff();
    lse[i] = sees ? head.lse[q0 + i] * kLog2E : __builtin_inff();
    d[i] = i < queries ? dot(head.dout[q0 + i], head.out[q0 + i], head.HS) : 0;
  }
}

// Writes n rows of sums times a factor.
template <class T>
inline void write_rows(const float* sums, std::int64_t ld, std::int64_t n, std::int64_t HS, float factor,
                       Rows<T> to) {
  for (std::int64_t row = 0; row < n; ++row) {
    for_each_vector(0, HS, [&](std::int64_t d, int lanes) {
      store_lanes(to[row] + d, load(sums + row * ld + d) * set1(factor), lanes);
    });
  }
}

// Calls add(head) for each query head that sees the key head. It adds to head.sums, whose rows have length
// ld. Then writes dk and dv.
template <class T, class F>
inline void sum_key_gradients(const KeyHead<T>& keys, std::int64_t ld, const F& add) {
  const BackwardHead<T> first = keys.query_head(0);
  float *dk = first.sums, *dv = dk + first.sum_rows() * ld;
  clear(dk, 2 * first.sum_rows() * ld);
  for (std::int64_t i = 0; i < keys.group; ++i) add(keys.query_head(i));
  write_rows(dk, ld, first.sequence.keys, first.HS, first.scale, first.dk);
  write_rows(dv, ld, first.sequence.keys, first.HS, 1, first.dv);
}

}  // namespace
}  // namespace warpwright::ops::attention
