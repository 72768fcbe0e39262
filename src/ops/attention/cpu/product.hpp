// Products of small packed fp32 matrices in a core's cache, and their packing. A tile of C stays in registers
// during the loop over the inner dimension. It has 4 × 4 or 8 × 3 vectors with AVX-512 and 4 × 3 with AVX2,
// so that the fused multiply-adds wait neither for each other nor for loads.
#pragma once

#include "ops/attention/cpu/tasks.hpp"
#include "ops/cpu/simd.hpp"

namespace warpwright::ops::attention {
namespace {

using namespace simd;

enum class Start : std::uint8_t { zero, add, scale };  // C = A·B, C += A·B, C = diag(factor)·C + A·B
enum class Layout : std::uint8_t { rows, columns };    // A(m, k) is a[m · lda + k] or a[k · lda + m]

constexpr int kMaxVectors = kLanes == 16 ? 4 : 3;  // widest register tile, in vectors
template <int W>
constexpr int kTileRows = kLanes == 16 ? (W == 4 ? 4 : 8) : (W == 1 ? 8 : 4);

struct Matrix {
  const float* data;
  std::int64_t ld;
};

template <Layout layout, int W>
inline void product_tile(std::int64_t K, Matrix a, Matrix b, float* c, std::int64_t ldc, Start start,
                         const float* factor) {
  constexpr int R = kTileRows<W>;
  vec sum[R][W];
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) {
      sum[r][w] = start == Start::zero ? zero() : load(c + r * ldc + w * kLanes);
      if (start == Start::scale) sum[r][w] = sum[r][w] * set1(factor[r]);
    }
  }
  for (std::int64_t k = 0; k < K; ++k) {
    vec right[W];
    for (int w = 0; w < W; ++w) right[w] = load(b.data + k * b.ld + w * kLanes);
    for (int r = 0; r < R; ++r) {
      const vec left = set1(layout == Layout::rows ? a.data[r * a.ld + k] : a.data[k * a.ld + r]);
      for (int w = 0; w < W; ++w) sum[r][w] = fma(left, right[w], sum[r][w]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) store(c + r * ldc + w * kLanes, sum[r][w]);
  }
}

template <Layout layout, int W>
inline void product_panel(std::int64_t M, std::int64_t K, Matrix a, Matrix b, float* c, std::int64_t ldc,
                          Start start, const float* factor) {
  for (std::int64_t m = 0; m < M; m += kTileRows<W>) {
    const Matrix rows{a.data + (layout == Layout::rows ? m * a.ld : m), a.ld};
    product_tile<layout, W>(K, rows, b, c + m * ldc, ldc, start, factor ? factor + m : nullptr);
  }
}

// C (M, N vectors) from A (M, K) and B (K, N vectors). M is a multiple of kRowGroup. With Start::scale, row m
// of C is first multiplied by factor[m].
template <Layout layout>
inline void product(std::int64_t M, std::int64_t N, std::int64_t K, Matrix a, Matrix b, float* c,
                    std::int64_t ldc, Start start, const float* factor = nullptr) {
  std::int64_t panels = (N + kMaxVectors - 1) / kMaxVectors;
  for (std::int64_t n = 0; panels > 0; --panels) {
    const std::int64_t W = (N - n + panels - 1) / panels;  // panels of about equal width
    const Matrix right{b.data + n * kLanes, b.ld};
    float* left = c + n * kLanes;
    if (W == 1) product_panel<layout, 1>(M, K, a, right, left, ldc, start, factor);
    if (W == 2) product_panel<layout, 2>(M, K, a, right, left, ldc, start, factor);
    if (W == 3) product_panel<layout, 3>(M, K, a, right, left, ldc, start, factor);
    if constexpr (kMaxVectors == 4) {
      if (W == 4) product_panel<layout, 4>(M, K, a, right, left, ldc, start, factor);
    }
    n += W;
  }
}

inline void clear(float* to, std::int64_t floats) {  // floats: a multiple of kLanes
  for (std::int64_t i = 0; i < floats; i += kLanes) store(to + i, zero());
}

// Converts n rows of HS elements to fp32 rows of length ld ≥ HS, a multiple of kLanes. Zeros fill each row,
// and rows up to `padded`.
template <class T>
inline void pack(Rows<const T> from, std::int64_t n, std::int64_t HS, float* to, std::int64_t ld,
                 std::int64_t padded) {
  for (std::int64_t row = 0; row < n; ++row) {
    const T* x = from[row];
    for_each_vector(0, HS,
                    [&](std::int64_t d, int lanes) { store(to + row * ld + d, load_lanes(x + d, lanes)); });
  }
  clear(to + n * ld, (padded - n) * ld);
}

// Transposes packed rows, whose number is a multiple of kLanes, and multiplies by a factor: to[d · kBlock +
// row].
inline void pack_transposed(const float* from, std::int64_t ld, std::int64_t rows, float factor, float* to) {
  const vec f = set1(factor);
  for (std::int64_t row = 0; row < rows; row += kLanes) {
    for (std::int64_t d = 0; d < ld; d += kLanes) {
      vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) square[i] = load(from + (row + i) * ld + d);
      transpose(square);
      for (int i = 0; i < kLanes; ++i) store(to + (d + i) * kBlock + row, square[i] * f);
    }
  }
}

// Computes the visible part of a tile of Sᵀ = K·Qᵀ, in whole vectors of queries and groups of keys. Row j
// holds the scores of key j. Rows are padded to kRowGroup, queries to kLanes.
inline void scores_tile(const Band& band, std::int64_t HS, Matrix keys, const float* queries_transposed,
                        float* scores) {
  const std::int64_t step = band.masks() ? 2 * kRowGroup : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const Range queries = band.queries_seeing(j, step).widened(kLanes);
    product<Layout::rows>(round_up(at_most(step, band.nk - j), kRowGroup), queries.size() / kLanes, HS,
                          {keys.data + j * keys.ld, keys.ld}, {queries_transposed + queries.begin, kBlock},
                          scores + j * kBlock + queries.begin, kBlock, Start::zero);
  }
}

// 0, 1, 2, … in the lanes.
inline vec lane_numbers() {
  alignas(64) float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(i);
  return load(lanes);
}

// The masks of a vector of queries: hidden instead of x, which belongs to key j, in the lanes that do not see
// that key.
struct NoMask {
  vec operator()(std::int64_t, vec x, vec) const { return x; }
};
struct Before {
  vec end;
  vec operator()(std::int64_t j, vec x, vec hidden) const {
    return select_less(set1(static_cast<float>(j)), end, x, hidden);
  }
};
struct Between {
  vec begin;
  Before end;
  vec operator()(std::int64_t j, vec x, vec hidden) const {
    return select_less(set1(static_cast<float>(j)), begin, hidden, end(j, x, hidden));
  }
};

// Returns f(mask) with the mask that these rows of keys need for the vector of queries from i on.
template <class F>
inline auto with_mask(const Band& band, std::int64_t i, Range rows, const F& f) {
  const auto limits = [&](std::int64_t first) {
    return fma(lane_numbers(), set1(static_cast<float>(band.slope)), set1(static_cast<float>(first)));
  };
  const std::int64_t end = band.first_end + band.slope * i;
  if (rows.begin < band.begin(i + kLanes - 1)) return f(Between{limits(end - band.window), {limits(end)}});
  if (band.end(i) < rows.end) return f(Before{limits(end)});
  return f(NoMask{});
}

}  // namespace
}  // namespace warpwright::ops::attention
