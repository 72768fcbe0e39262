// Products of small bf16 matrices in AMX tiles. Layouts: Intel 64 and IA-32 Architectures Software
// Developer's Manual, TDPBF16PS.
#pragma once

#include "ops/attention/cpu/tile_matrix.hpp"
#include "ops/cpu/amx.hpp"

namespace warpwright::ops::attention {
namespace {

using TileSession = simd::TileSession;

// R × C tiles of sums are in tiles 0 … 3, those of A in 4 and 5, those of B in 6 and 7.
template <int R, int C>
inline void tile_product_block(std::int64_t steps, TileMatrix a, TileMatrix b, float* c, std::int64_t ldc,
                               bool add) {
  const std::int64_t row = ldc * static_cast<std::int64_t>(sizeof(float));
  if (add) {
    _tile_loadd(0, c, row);
    if constexpr (C == 2) _tile_loadd(1, c + kTile, row);
    if constexpr (R == 2) _tile_loadd(2, c + kTile * ldc, row);
    if constexpr (R == 2 && C == 2) _tile_loadd(3, c + kTile * ldc + kTile, row);
  } else {
    _tile_zero(0);
    if constexpr (C == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && C == 2) _tile_zero(3);
  }
  for (std::int64_t k = 0; k < steps; ++k) {
    _tile_loadd(4, a.at(0, k * 64), a.row_bytes);
    _tile_loadd(6, b.at(k * kTile, 0), b.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 2) {
      _tile_loadd(7, b.at(k * kTile, 64), b.row_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R == 2) {
      _tile_loadd(5, a.at(kTile, k * 64), a.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (R == 2 && C == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, row);
  if constexpr (C == 2) _tile_stored(1, c + kTile, row);
  if constexpr (R == 2) _tile_stored(2, c + kTile * ldc, row);
  if constexpr (R == 2 && C == 2) _tile_stored(3, c + kTile * ldc + kTile, row);
}

template <int R>
inline void tile_product_strip(std::int64_t N, std::int64_t steps, TileMatrix a, TileMatrix b, float* c,
                               std::int64_t ldc, bool add) {
  for (std::int64_t n = 0; n < N; n += 2) {
    const TileMatrix right{b.at(0, n * 64), b.row_bytes};
    if (N - n == 1) {
      tile_product_block<R, 1>(steps, a, right, c + n * kTile, ldc, add);
    } else {
      tile_product_block<R, 2>(steps, a, right, c + n * kTile, ldc, add);
    }
  }
}

// C (M × N tiles of fp32) = or += A (M tiles of rows) · B (N tiles of pairs), over `steps` of kTileDepth.
inline void tile_product(std::int64_t M, std::int64_t N, std::int64_t steps, TileMatrix a, TileMatrix b,
                         float* c, std::int64_t ldc, bool add) {
  asm volatile("" ::: "memory");  // GCC's tile loads do not declare that they read memory
  for (std::int64_t m = 0; m < M; m += 2) {
    const TileMatrix left{a.at(m * kTile, 0), a.row_bytes};
    float* to = c + m * kTile * ldc;
    if (M - m == 1) {
      tile_product_strip<1>(N, steps, left, b, to, ldc, add);
    } else {
      tile_product_strip<2>(N, steps, left, b, to, ldc, add);
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::attention
