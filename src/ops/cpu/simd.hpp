// One vector of floats in the widest registers of the instruction set for which the including file is
// compiled: 16 lanes with AVX-512, 8 with AVX2. Everything has internal linkage, so that the linker never
// uses the code of one instruction set in a file for another (see "ISA files" in HACKING.md).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace warpwright::ops::simd {
namespace {

// Adding 1.5 · 2^23 to a float of magnitude at most 2^22 rounds it to an integer.
constexpr float kRounder = 12582912.0f;

#if defined(__AVX512F__)

using vec = __m512;
using ivec = __m512i;
constexpr int kLanes = 16;

inline vec zero() {
  return _mm512_setzero_ps();
}
inline vec set1(float x) {
  return _mm512_set1_ps(x);
}
inline vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, vec v) {
  _mm512_storeu_ps(p, v);
}
inline void stream(float* p, vec v) {
  _mm512_stream_ps(p, v);
}  // bypasses the caches; p is aligned to 64 bytes
inline vec fma(vec a, vec b, vec c) {
  return _mm512_fmadd_ps(a, b, c);
}  // a·b + c
inline vec fnma(vec a, vec b, vec c) {
  return _mm512_fnmadd_ps(a, b, c);
}  // c − a·b
inline vec max(vec a, vec b) {
  return _mm512_max_ps(a, b);
}
inline vec min(vec a, vec b) {
  return _mm512_min_ps(a, b);
}
inline vec sqrt(vec a) {
  return _mm512_sqrt_ps(a);
}
inline vec abs(vec a) {
  return _mm512_abs_ps(a);
}
inline vec select_less(vec a, vec b, vec yes, vec no) {  // a < b ? yes : no
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
// The end of exp() and exp2(): 2 · half · 2^n, or 0 if x < least. rounder is n + kRounder.
inline vec scale_exp(vec half, vec rounder, vec x, float least) {
  const __mmask16 seen = _mm512_cmp_ps_mask(x, set1(least), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(seen, half, rounder - set1(kRounder - 1));
}

inline __mmask16 first(int n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}  // n in [0, 16]
inline vec load(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
inline void store(float* p, vec v, int n) {
  _mm512_mask_storeu_ps(p, first(n), v);
}
inline vec keep(vec v, int n, vec rest) {  // the first n lanes of v, the other lanes of rest
  return _mm512_mask_blend_ps(first(n), rest, v);
}

inline vec widen(__m256i h) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline __m256i narrow(vec v) {  // to bf16, round to nearest even, NaN stays NaN
#if defined(__AVX512BF16__)     // one instruction, which treats subnormal numbers as 0
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
#endif
}
inline vec load(const bf16* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(bf16* p, vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v));
}
inline vec load(const bf16* p, int n) {
  return widen(_mm256_maskz_loadu_epi16(first(n), p));
}
inline void store(bf16* p, vec v, int n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(v));
}

inline vec load(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(f16* p, vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline vec load(const f16* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
inline void store(f16* p, vec v, int n) {
  _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

// take_apart: a and b hold 2 · kLanes consecutive floats; afterwards a holds the even ones and b the odd
// ones. put_together is the inverse.
inline void take_apart(vec& a, vec& b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const vec low = a;
  a = _mm512_permutex2var_ps(low, even, b);
  b = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}
inline void put_together(vec& a, vec& b) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const vec even = a;
  a = _mm512_permutex2var_ps(even, first, b);
  b = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
}
// The same for bf16. It takes only a shift and a mask; keeping the order would take a shuffle for each half.
inline void load_apart(const bf16* p, vec& even, vec& odd) {
  const __m512i u = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
inline __m512i narrow_apart(vec even, vec odd) {
  // u + 0x7fff + (u >> 16 & 1). madd adds the two words of `words`, each multiplied by 1.
  const auto rounded = [](vec v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i words =
        _mm512_ternarylogic_epi32(u, _mm512_set1_epi32(0x10000), _mm512_set1_epi32(0x7fff), 0xea);
    return _mm512_add_epi32(u, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  };
  __m512i low = rounded(even), high = rounded(odd);
  if (__builtin_expect(_mm512_cmp_ps_mask(even, odd, _CMP_UNORD_Q) != 0, 0)) {
    const __m512i quiet = _mm512_set1_epi32(0x400000);
    low = _mm512_mask_or_epi32(low, _mm512_cmp_ps_mask(even, even, _CMP_UNORD_Q), _mm512_castps_si512(even),
                               quiet);
    high = _mm512_mask_or_epi32(high, _mm512_cmp_ps_mask(odd, odd, _CMP_UNORD_Q), _mm512_castps_si512(odd),
                                quiet);
  }
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, upper, 0xf8);  // a | (b & c)
}
inline void store_apart(bf16* p, vec even, vec odd) {
  _mm512_storeu_si512(p, narrow_apart(even, odd));
}
inline void stream_apart(bf16* p, vec even, vec odd) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow_apart(even, odd));
}

// Turns rows into columns.
inline void transpose(vec (&r)[kLanes]) {
  vec t[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](vec a, vec b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](vec a, vec b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  for (int i = 0; i < kLanes; i += 4) {  // r[i + c]: in each 128-bit lane L, column 4L + c of rows i … i + 3
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
    r[4 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
    r[8 + c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0xdd);
    r[12 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xdd);
  }
}

// The sum and the maximum over the lanes, in one fixed order.
inline float sum(vec v) {
  return _mm512_reduce_add_ps(v);
}
inline float maximum(vec v) {
  return _mm512_reduce_max_ps(v);
}

// A vector of doubles, widened from floats, for sums over whole tensors.
using dvec = __m512d;
constexpr int kDoubles = 8;
inline dvec load_double(const float* p) {
  return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
inline dvec fma(dvec a, dvec b, dvec c) {
  return _mm512_fmadd_pd(a, b, c);
}
inline double sum(dvec v) {
  return _mm512_reduce_add_pd(v);
}

#elif defined(__AVX2__)

using vec = __m256;
using ivec = __m256i;
constexpr int kLanes = 8;

inline vec zero() {
  return _mm256_setzero_ps();
}
inline vec set1(float x) {
  return _mm256_set1_ps(x);
}
inline vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, vec v) {
  _mm256_storeu_ps(p, v);
}
inline void stream(float* p, vec v) {
  _mm256_stream_ps(p, v);
}
inline vec fma(vec a, vec b, vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline vec fnma(vec a, vec b, vec c) {
  return _mm256_fnmadd_ps(a, b, c);
}
inline vec max(vec a, vec b) {
  return _mm256_max_ps(a, b);
}
inline vec min(vec a, vec b) {
  return _mm256_min_ps(a, b);
}
inline vec sqrt(vec a) {
  return _mm256_sqrt_ps(a);
}
inline vec abs(vec a) {
  return _mm256_andnot_ps(set1(-0.0f), a);
}
inline vec select_less(vec a, vec b, vec yes, vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// n is stored in the low bits of rounder, and the shift pushes all other bits out of the register. The sum of
// the exponents stays in range, because 2 · half < √2 and n ≤ 128.
inline vec scale_exp(vec half, vec rounder, vec x, float least) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(rounder), 23);
  const vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(half), n));
  return _mm256_and_ps(_mm256_cmp_ps(x, set1(least), _CMP_NLT_UQ), scaled + scaled);
}

inline ivec first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline vec load(const float* p, int n) {
  return _mm256_maskload_ps(p, first(n));
}
inline void store(float* p, vec v, int n) {
  _mm256_maskstore_ps(p, first(n), v);
}
inline vec keep(vec v, int n, vec rest) {
  return _mm256_blendv_ps(rest, v, _mm256_castsi256_ps(first(n)));
}

inline vec widen(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline __m128i narrow(vec v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}
inline vec load(const bf16* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store(bf16* p, vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v));
}
inline vec load(const bf16* p, int n) {
  alignas(16) std::uint16_t lanes[8] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i].bits;
  return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(lanes)));
}
inline void store(bf16* p, vec v, int n) {
  alignas(16) std::uint16_t lanes[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), narrow(v));
  for (int i = 0; i < n; ++i) p[i].bits = lanes[i];
}

inline vec load(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store(f16* p, vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline vec load(const f16* p, int n) {
  alignas(16) std::uint16_t lanes[8] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i].bits;
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(lanes)));
}
inline void store(f16* p, vec v, int n) {
  alignas(16) std::uint16_t lanes[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  for (int i = 0; i < n; ++i) p[i].bits = lanes[i];
}

inline void take_apart(vec& a, vec& b) {
  const vec even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);
  a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
  b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
}
inline void put_together(vec& a, vec& b) {
  const vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}
inline void load_apart(const bf16* p, vec& even, vec& odd) {
  const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
inline __m256i round_to_bf16(vec v) {  // in the upper half of each lane
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
inline __m256i narrow_apart(vec even, vec odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(round_to_bf16(even), 16), round_to_bf16(odd), 0xaa);
}
inline void store_apart(bf16* p, vec even, vec odd) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_apart(even, odd));
}
inline void stream_apart(bf16* p, vec even, vec odd) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_apart(even, odd));
}

inline void transpose(vec (&r)[kLanes]) {
  vec t[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](vec a, vec b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  };
  const auto high = [](vec a, vec b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  };
  for (int i = 0; i < kLanes; i += 4) {  // r[i + c]: in each 128-bit lane L, column 4L + c of rows i … i + 3
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) t[c] = r[c];
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(t[c], r[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(t[c], r[4 + c], 0x31);
  }
}

inline float sum(vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float maximum(vec v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

using dvec = __m256d;
constexpr int kDoubles = 4;
inline dvec load_double(const float* p) {
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
inline dvec fma(dvec a, dvec b, dvec c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline double sum(dvec v) {
  const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

#else
#error "ops/cpu/simd.hpp is for files compiled for AVX2 or AVX-512"
#endif

#if defined(__AVX512F__)
inline void stream(bf16* p, vec v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(v));
}
inline void stream(f16* p, vec v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#else
inline void stream(bf16* p, vec v) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(v));
}
inline void stream(f16* p, vec v) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#endif

// Prefetches into the first-level cache. Any address is allowed.
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// Makes the data written by stream() visible to other threads. A barrier between threads does not suffice.
inline void fence() {
  _mm_sfence();
}

// While it lives, this thread treats subnormal operands and results as 0. An instruction that meets a
// subnormal number is 20 times slower.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // FTZ and DAZ
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

// One element, converted in the same way as in a vector.
inline float to_float(float x) {
  return x;
}
inline float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}
inline float to_float(f16 x) {
  return _cvtsh_ss(x.bits);
}

// The first n lanes. Usually these are all lanes.
template <class T>
inline vec load_lanes(const T* p, int n) {
  return n == kLanes ? load(p) : load(p, n);
}
template <class T>
inline void store_lanes(T* p, vec v, int n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store(p, v, n);
  }
}

// Calls f(i, n) for each vector of [begin, end): the n lanes from i on. Only the last vector may have fewer
// than kLanes.
template <class F>
inline void for_each_vector(std::int64_t begin, std::int64_t end, const F& f) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, kLanes);
  if (i < end) f(i, static_cast<int>(end - i));
}

// e^x within an ulp. x = n·ln 2 + r with |r| ≤ ln 2 / 2, by Cody and Waite's split of ln 2 into two parts.
// e^r is the polynomial 1 + r + r²·q(r) of degree 6 with the least relative error in this range, 3.1e-9 or a
// twentieth of an ulp. It comes from a weighted least-squares fit whose weights follow the error until the
// error is level. Below −86 the result is 0, so that no sum of exponentials meets a subnormal number. Above
// 88.73 it is inf.
inline vec exp(vec x) {
  // min returns its second operand, x, if one operand is NaN. NaN therefore stays NaN.
  const vec bounded = min(set1(89.0f), x);
  const vec rounder = fma(bounded, set1(1.44269504088896341f), set1(kRounder));
  const vec n = rounder - set1(kRounder);
  const vec r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), bounded));
  vec half = set1(0.5f * 0.0013814539579915047f);
  half = fma(half, r, set1(0.5f * 0.00836874544620514f));
  half = fma(half, r, set1(0.5f * 0.04166838899254799f));
  half = fma(half, r, set1(0.5f * 0.1666652113199234f));
  half = fma(half, r, set1(0.5f * 0.4999999403953552f));
  half = fma(half, r, set1(0.5f));
  half = fma(half, r, set1(0.5f));
  return scale_exp(half, rounder, x, -86.0f);
}

// 2^x. x = n + r with |r| ≤ 1/2; 2^r is the polynomial of degree 6 with the least relative error in this
// range, 2e-9. Below −124 the result is 0, from 128 on it is inf, and NaN stays NaN.
inline vec exp2(vec x) {
  const vec bounded = min(set1(128.0f), x);
  const vec rounder = bounded + set1(kRounder);
  const vec r = bounded - (rounder - set1(kRounder));
  vec half = set1(0.5f * 1.53458121587e-4f);
  half = fma(half, r, set1(0.5f * 1.33999312095e-3f));
  half = fma(half, r, set1(0.5f * 9.61848895652e-3f));
  half = fma(half, r, set1(0.5f * 5.550328777e-2f));
  half = fma(half, r, set1(0.5f * 0.240226468906f));
  half = fma(half, r, set1(0.5f * 0.693147205737f));
  half = fma(half, r, set1(0.5f));
  return scale_exp(half, rounder, x, -124.0f);
}

}  // namespace
}  // namespace warpwright::ops::simd
