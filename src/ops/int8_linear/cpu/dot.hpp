// Products with VNNI, which adds four products of an unsigned and a signed byte to an int32 at once.
//
// A tile of sums is kRows × 32 in registers. For each quad of the depth, a row's four bytes are broadcast and
// multiplied with every vector of the panel.
#pragma once

#include "ops/int8_linear/cpu/product.hpp"

namespace warpwright::ops::int8::WARPWRIGHT_ISA {
namespace {

#if defined(__AVX512VNNI__)

inline ivec load_bytes(const std::int8_t* p) {
  return _mm512_loadu_si512(p);
}
inline void store_words(std::int32_t* p, ivec v) {
  _mm512_storeu_si512(p, v);
}
inline ivec broadcast_quad(std::int32_t quad) {
  return _mm512_set1_epi32(quad);
}
inline ivec dot(ivec sum, ivec x, ivec w) {
  return _mm512_dpbusd_epi32(sum, x, w);
}
constexpr std::int64_t kDotRows = 8;

#else

inline ivec load_bytes(const std::int8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store_words(std::int32_t* p, ivec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
inline ivec broadcast_quad(std::int32_t quad) {
  return _mm256_set1_epi32(quad);
}
inline ivec dot(ivec sum, ivec x, ivec w) {
  return _mm256_dpbusd_avx_epi32(sum, x, w);
}
constexpr std::int64_t kDotRows = 2;

#endif

struct Dot {
  static constexpr std::int64_t kRows = kDotRows;
  struct Session {};
  static constexpr int kVectors = kPanel / kLanes;
  static_assert(kTile % kRows == 0 && kTile % kLanes == 0);

  template <int rows>
  static void multiply_rows(const std::uint8_t* x, const Panel& panel, std::int64_t steps,
                            std::int32_t* sums) {
    ivec sum[rows][kVectors];
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < rows; ++r) sum[r][v] = broadcast_quad(0);
    }
    const std::int8_t* w = panel.elements;
    for (std::int64_t s = 0; s < steps; ++s, x += kTileBytes, w += 2 * kTileBytes) {
      for (std::int64_t quad = 0; quad < kStep; quad += 4) {
        ivec columns[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const int col = v * kLanes;
          columns[v] = load_bytes(w + col / kTile * kTileBytes + quad / 4 * kStep + col % kTile * 4);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          std::int32_t bytes;
          __builtin_memcpy(&bytes, x + r * kStep + quad, sizeof(bytes));
          const ivec row = broadcast_quad(bytes);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[r][v] = dot(sum[r][v], row, columns[v]);
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_words(sums + r * kPanel + v * kLanes, sum[r][v]);
    }
  }

  static void multiply(const std::uint8_t* x, std::int64_t rows, const Panel& panel, std::int64_t steps,
                       std::int32_t* sums) {
    if (rows == 1) return multiply_rows<1>(x, panel, steps, sums);
    if (rows <= kRows / 2) return multiply_rows<kRows / 2>(x, panel, steps, sums);
    multiply_rows<kRows>(x, panel, steps, sums);
  }
};

}  // namespace
}  // namespace warpwright::ops::int8::WARPWRIGHT_ISA
