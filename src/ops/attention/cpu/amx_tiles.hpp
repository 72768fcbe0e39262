// Products of small bf16 matrices by AMX with fp32 sums, and their packing. A is stored in rows. B is stored
// in pairs: for each column, two consecutive elements of the inner dimension are adjacent. Layouts: Intel 64
// and IA-32 Architectures Software Developer's Manual, TDPBF16PS.
#pragma once

#include "ops/attention/cpu/gradients.hpp"
#include "ops/cpu/amx.hpp"

namespace warpwright::ops::attention {
namespace {

using Pair = std::uint32_t;  // two bf16, the first in the lower half

constexpr int kTile = 16;                                 // rows of a tile, and its columns of fp32 or pairs
constexpr int kTileDepth = 32;                            // length of one instruction's inner dimension
constexpr std::int64_t kPairRow = kBlock * sizeof(Pair);  // bytes between rows of pairs

struct TileMatrix {
  const void* data;
  std::int64_t row_bytes;

  const char* at(std::int64_t row, std::int64_t byte) const {
    return static_cast<const char*>(data) + row * row_bytes + byte;
  }
};

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

// In the following functions, HS is a multiple of kTileDepth.

// Copies n rows, and fills rows up to `padded` with 0.
inline void pack_rows(Rows<const bf16> from, std::int64_t n, std::int64_t HS, std::int64_t padded, bf16* to) {
  for (std::int64_t row = 0; row < padded; ++row) {
    for (std::int64_t d = 0; d < HS; d += 32) {
      const __m512i x = row < n ? _mm512_loadu_si512(from[row] + d) : _mm512_setzero_si512();
      _mm512_storeu_si512(to + row * HS + d, x);
    }
  }
}

// Packs rows 2p and 2p + 1 as pairs: to[p · HS + d]. Rows from n to `padded` are 0.
inline void pack_pairs(Rows<const bf16> from, std::int64_t n, std::int64_t HS, std::int64_t padded,
                       Pair* to) {
  const auto half = [&](std::int64_t row, std::int64_t d) {
    return row < n
               ? _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[row] + d)))
               : _mm512_setzero_si512();
  };
  for (std::int64_t row = 0; row < padded; row += 2) {
    for (std::int64_t d = 0; d < HS; d += kTile) {
      const __m512i pair = _mm512_or_si512(half(row, d), _mm512_slli_epi32(half(row + 1, d), 16));
      _mm512_storeu_si512(to + row / 2 * HS + d, pair);
    }
  }
}

// Transposes rows × columns pairs, both multiples of kTile: to[column · ld + row].
inline void transpose_pairs(const void* from, std::int64_t rows, std::int64_t columns, Pair* to,
                            std::int64_t ld) {
  const auto* pairs = static_cast<const float*>(from);
  for (std::int64_t row = 0; row < rows; row += kTile) {
    for (std::int64_t column = 0; column < columns; column += kTile) {
      vec square[kTile];
      for (int i = 0; i < kTile; ++i) square[i] = load(pairs + (row + i) * columns + column);
      transpose(square);
      for (int i = 0; i < kTile; ++i) {
        _mm512_storeu_ps(to + (column + i) * ld + row, square[i]);
      }
    }
  }
}

// Sixteen elements of each of two rows, rounded to bf16. They can be stored as pairs or as rows.
struct RoundedRows {
  __m512i rows;  // the first row is in the lower half

  RoundedRows(vec first, vec second) : rows((__m512i)_mm512_cvtne2ps_pbh(second, first)) {}
  void store_pairs(Pair* to) const {
    const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                            7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, rows));
  }
  void store_rows(bf16* first, bf16* second) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(first), _mm512_castsi512_si256(rows));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(second), _mm512_extracti64x4_epi64(rows, 1));
  }
};

// Like scores_tile() of product.hpp: computes a tile of scores from K in rows and Qᵀ in pairs, both padded to
// kTile.
inline void scores_by_tiles(const Band& band, std::int64_t queries, std::int64_t HS, const bf16* keys,
                            const Pair* queries_transposed, float* scores) {
  const std::int64_t vectors = (queries + kTile - 1) / kTile;
  const std::int64_t key_row = HS * static_cast<std::int64_t>(sizeof(bf16));
  const std::int64_t step = band.masks() ? 2 * kTile : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const std::int64_t w = band.first_query(j) / kTile;
    tile_product((at_most(step, band.nk - j) + kTile - 1) / kTile, vectors - w, HS / kTileDepth,
                 {keys + j * HS, key_row}, {queries_transposed + w * kTile, kPairRow},
                 scores + j * kBlock + w * kTile, kBlock, false);
  }
}

// sums (HS, kBlock queries) += rows (HS, kBlock keys) · pairs (keys, kBlock queries). Only keys that the
// queries see are used.
inline void add_by_tiles(const Band& band, std::int64_t queries, std::int64_t HS, const bf16* rows,
                         const Pair* pairs, float* sums) {
  const std::int64_t step = band.masks() ? 2 * kTile : kBlock;
  for (std::int64_t i = 0; i < queries; i += step) {
    const std::int64_t vectors = (at_most(step, queries - i) + kTile - 1) / kTile;
    const std::int64_t keys = band.keys_seen(i + step - 1);
    tile_product(HS / kTile, vectors, (keys + kTileDepth - 1) / kTileDepth,
                 {rows, kBlock * static_cast<std::int64_t>(sizeof(bf16))}, {pairs + i, kPairRow}, sums + i,
                 kBlock, true);
  }
}

// Writes one row per query from sums (HS, kBlock queries) times a factor per query.
template <class Factor>
inline void write_transposed(const float* sums, std::int64_t queries, std::int64_t HS, const Factor& factor,
                             Rows<bf16> to) {
  for (std::int64_t i = 0; i < queries; i += kTile) {
    const vec f = factor(i);
    for (std::int64_t d = 0; d < HS; d += kTile) {
      vec square[kTile];
      for (int r = 0; r < kTile; ++r) square[r] = load(sums + (d + r) * kBlock + i) * f;
      transpose(square);
      for (std::int64_t r = 0; r < kTile && i + r < queries; ++r) store(to[i + r] + d, square[r]);
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::attention
