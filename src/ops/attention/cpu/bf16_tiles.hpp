// Products of bf16 tiles by AMX or by vdpbf16ps with fp32 sums, and their packing.
#pragma once

#include "ops/attention/cpu/gradients.hpp"
#if defined(__AMX_TILE__)
#include "ops/attention/cpu/amx_product.hpp"
#else
#include "ops/attention/cpu/dot_product.hpp"
#endif

namespace warpwright::ops::attention {
namespace {

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
inline void scores_by_tiles(const Band& band, std::int64_t HS, const bf16* keys,
                            const Pair* queries_transposed, float* scores) {
  const std::int64_t key_row = HS * static_cast<std::int64_t>(sizeof(bf16));
  const std::int64_t step = band.masks() ? 2 * kTile : kBlock;
  for (std::int64_t j = 0; j < band.nk; j += step) {
    const Range queries = band.queries_seeing(j, step).widened(kTile);
    tile_product((at_most(step, band.nk - j) + kTile - 1) / kTile, queries.size() / kTile, HS / kTileDepth,
                 {keys + j * HS, key_row}, {queries_transposed + queries.begin, kPairRow},
                 scores + j * kBlock + queries.begin, kBlock, false);
  }
}

// sums (HS, kBlock queries) += rows (HS, kBlock keys) · pairs (keys, kBlock queries). Only keys that the
// queries see are used.
inline void add_by_tiles(const Band& band, std::int64_t HS, const bf16* rows, const Pair* pairs,
                         float* sums) {
  const std::int64_t step = band.masks() ? 2 * kTile : kBlock;
  for (std::int64_t i = 0; i < band.queries; i += step) {
    const std::int64_t vectors = (at_most(step, band.queries - i) + kTile - 1) / kTile;
    const Range keys = band.keys_seen(i, step).widened(kTileDepth);
    tile_product(HS / kTile, vectors, keys.size() / kTileDepth,
                 {rows + keys.begin, kBlock * static_cast<std::int64_t>(sizeof(bf16))},
                 {pairs + keys.begin / 2 * kBlock + i, kPairRow}, sums + i, kBlock, true);
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
