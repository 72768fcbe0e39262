// Products of small bf16 matrices with vdpbf16ps: 4 × 4 or 8 × 3 vectors of sums stay in registers during the
// loop over the inner dimension.
#pragma once

#include "ops/attention/cpu/product.hpp"
#include "ops/attention/cpu/tile_matrix.hpp"
#include "ops/cpu/dot.hpp"

namespace warpwright::ops::attention {
namespace {

struct TileSession {};

template <int W>
inline void dot_rows(std::int64_t pairs, TileMatrix a, TileMatrix b, float* c, std::int64_t ldc, bool add) {
  constexpr int R = kTileRows<W>;
  vec sum[R][W];
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) sum[r][w] = add ? load(c + r * ldc + w * kLanes) : zero();
  }
  for (std::int64_t p = 0; p < pairs; ++p) {
    __m512bh right[W];
    for (int w = 0; w < W; ++w) right[w] = load_pairs(b.at(p, w * 64));
    for (int r = 0; r < R; ++r) {
      const __m512bh left = broadcast_pair(a.at(r, p * 4));
      for (int w = 0; w < W; ++w) sum[r][w] = _mm512_dpbf16_ps(sum[r][w], left, right[w]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) store(c + r * ldc + w * kLanes, sum[r][w]);
  }
}

template <int W>
inline void dot_panel(std::int64_t M, std::int64_t pairs, TileMatrix a, TileMatrix b, float* c,
                      std::int64_t ldc, bool add) {
  for (std::int64_t m = 0; m < M; m += kTileRows<W>) {
    dot_rows<W>(pairs, {a.at(m, 0), a.row_bytes}, b, c + m * ldc, ldc, add);
  }
}

// C (M × N tiles of fp32) = or += A (M tiles of rows) · B (N tiles of pairs), over `steps` of kTileDepth.
inline void tile_product(std::int64_t M, std::int64_t N, std::int64_t steps, TileMatrix a, TileMatrix b,
                         float* c, std::int64_t ldc, bool add) {
  const std::int64_t rows = M * kTile, pairs = steps * kTileDepth / 2;
  std::int64_t panels = (N + kMaxVectors - 1) / kMaxVectors;
  for (std::int64_t n = 0; panels > 0; --panels) {
    const std::int64_t W = (N - n + panels - 1) / panels;  // panels of about equal width
    const TileMatrix right{b.at(0, n * 64), b.row_bytes};
    float* left = c + n * kLanes;
    if (W == 1) dot_panel<1>(rows, pairs, a, right, left, ldc, add);
    if (W == 2) dot_panel<2>(rows, pairs, a, right, left, ldc, add);
    if (W == 3) dot_panel<3>(rows, pairs, a, right, left, ldc, add);
    if (W == 4) dot_panel<4>(rows, pairs, a, right, left, ldc, add);
    n += W;
  }
}

}  // namespace
}  // namespace warpwright::ops::attention
