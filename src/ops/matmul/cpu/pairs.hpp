// Packs bf16 in pairs for the instructions that multiply and add pairs of products. A pair holds the terms 2p
// and 2p + 1 of one line (a row of A or a column of B) in 32 bits. Only for files that are compiled with
// AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace warpwright::ops::matmul::WARPWRIGHT_ISA {
namespace {

// Loads 32 bf16; those after the first n are 0.
inline __m512i load_row(const bf16* p, std::int64_t n) {
  if (n >= 32) return _mm512_loadu_si512(p);
  if (n <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << n) - 1), p);
}

// Transposes 16 × 16 pairs. row(i) returns 16 pairs of row i, and put(i, pairs) takes those of column i.
template <class Row, class Put>
inline void transpose(Row&& row, Put&& put) {
  __m512i r[16], t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512i a = row(i), b = row(i + 1);
    t[i] = _mm512_unpacklo_epi32(a, b);
    t[i + 1] = _mm512_unpackhi_epi32(a, b);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
                  b = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88),
                  e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    put(c, _mm512_shuffle_i32x4(a, d, 0x88));
    put(4 + c, _mm512_shuffle_i32x4(b, e, 0x88));
    put(8 + c, _mm512_shuffle_i32x4(a, d, 0xdd));
    put(12 + c, _mm512_shuffle_i32x4(b, e, 0xdd));
  }
}

}  // namespace
}  // namespace warpwright::ops::matmul::WARPWRIGHT_ISA
