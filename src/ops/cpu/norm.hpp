// Computes a row's statistics and normalizes the row, for ops/norm and ops/embedding_layernorm.
#pragma once

#include <type_traits>

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

// Two vectors of a row that are processed together.
struct wide {
  vec a, b;

  wide& operator+=(wide v) {
    a += v.a;
    b += v.b;
    return *this;
  }
};
inline wide operator+(wide x, wide y) {
  return {x.a + y.a, x.b + y.b};
}
inline wide operator-(wide x, wide y) {
  return {x.a - y.a, x.b - y.b};
}
inline wide operator-(wide x, vec y) {
  return {x.a - y, x.b - y};
}
inline wide operator*(wide x, wide y) {
  return {x.a * y.a, x.b * y.b};
}
inline wide operator*(wide x, vec y) {
  return {x.a * y, x.b * y};
}
inline wide fma(wide x, wide y, wide z) {
  return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)};
}
inline wide fnma(wide x, vec y, wide z) {
  return {fnma(x.a, y, z.a), fnma(x.b, y, z.b)};
}

// A position in a row: the n lanes from column c on. It loads and stores these columns of any array of the
// same width.
struct Lanes {
  std::int64_t c;
  int n;

  template <class T>
  vec load(const T* p) const {
    return load_lanes(p + c, n);
  }
  template <class T>
  void store(T* p, vec v) const {
    store_lanes(p + c, v, n);
  }
  template <class T>
  void stream(T* p, vec v) const {
    n == kLanes ? simd::stream(p + c, v) : store_lanes(p + c, v, n);
  }
  vec load_as_it_is(const float* p) const { return load(p); }
  void store_as_it_is(float* p, vec v) const { store(p, v); }
  vec set1(float x) const { return simd::set1(x); }
  vec only(vec v) const { return n < kLanes ? keep(v, n, zero()) : v; }
  static constexpr std::int64_t kColumns = kLanes;
};
// A position in a row: the 2 · kLanes columns from c on. If `apart` is true, as for rows of bf16, one vector
// holds the even columns and the other the odd ones. Private arrays may be stored in that order; place_of()
// gives a column's place in such an array.
template <bool apart>
struct Pair {
  std::int64_t c;

  template <class T>
  wide load(const T* p) const {
    wide v;
    if constexpr (std::is_same_v<T, bf16>) {
      load_apart(p + c, v.a, v.b);
    } else {
      v = {simd::load(p + c), simd::load(p + c + kLanes)};
      if constexpr (apart) take_apart(v.a, v.b);
    }
    return v;
  }
  template <class T>
  void store(T* p, wide v) const {
    if constexpr (std::is_same_v<T, bf16>) {
      store_apart(p + c, v.a, v.b);
    } else {
      if constexpr (apart) put_together(v.a, v.b);
      simd::store(p + c, v.a);
      simd::store(p + c + kLanes, v.b);
    }
  }
  template <class T>
  void stream(T* p, wide v) const {
    if constexpr (std::is_same_v<T, bf16>) {
      stream_apart(p + c, v.a, v.b);
    } else {
      if constexpr (apart) put_together(v.a, v.b);
      simd::stream(p + c, v.a);
      simd::stream(p + c + kLanes, v.b);
    }
  }
  wide load_as_it_is(const float* p) const { return {simd::load(p + c), simd::load(p + c + kLanes)}; }
  void store_as_it_is(float* p, wide v) const {
    simd::store(p + c, v.a);
    simd::store(p + c + kLanes, v.b);
  }
  wide set1(float x) const { return {simd::set1(x), simd::set1(x)}; }
  wide only(wide v) const { return v; }
  static constexpr std::int64_t kColumns = 2 * kLanes;
};
// kApart<T>: rows of T are split into even and odd columns. place_of<T>(c, C): the place of column c in an
// array that is stored in the order of the registers.
template <class T>
constexpr bool kApart = std::is_same_v<T, bf16>;
template <class T>
constexpr std::int64_t place_of(std::int64_t c, std::int64_t C) {
  constexpr std::int64_t kPair = 2 * kLanes;
  if (!kApart<T> || c >= C / kPair * kPair) return c;
  return c / kPair * kPair + c % 2 * kLanes + c % kPair / 2;
}

// Calls f for every position of a row of T: Pairs first, then Lanes.
template <class T, class F>
inline void for_each_pair(std::int64_t C, const F& f) {
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= C; c += 2 * kLanes) f(Pair<kApart<T>>{c});
  for_each_vector(c, C, [&](std::int64_t at, int n) { f(Lanes{at, n}); });
}

// Two sums over a row of T, added in a fixed order: f(at, a, b) adds the columns at a position to a and b.
// The positions are Pairs, then Lanes at the row's end. Each sum has two vectors, so that consecutive
// additions are independent. A new pair of vectors begins every 32 vectors, so that long rows are as accurate
// as short ones.
struct TwoSums {
  float a, b;
};
template <class T, class F>
inline TwoSums sum_row_twice(std::int64_t C, const F& f) {
  constexpr std::int64_t kBlock = 32 * kLanes;
  vec a = zero(), b = zero();
  for (std::int64_t begin = 0; begin < C; begin += kBlock) {
    const std::int64_t end = C - begin < kBlock ? C : begin + kBlock;
    wide block_a = {zero(), zero()}, block_b = {zero(), zero()};
    std::int64_t c = begin;
    for (; c + 2 * kLanes <= end; c += 2 * kLanes) f(Pair<kApart<T>>{c}, block_a, block_b);
    for (; c < end; c += kLanes) {
      f(Lanes{c, end - c < kLanes ? static_cast<int>(end - c) : kLanes}, block_a.a, block_b.a);
    }
    a += block_a.a + block_a.b;
    b += block_b.a + block_b.b;
  }
  return {sum(a), sum(b)};
}

// Calls f with the address of each line of 64 bytes at this position of an array.
template <class At, class T, class F>
inline void for_each_line(At at, const T* p, const F& f) {
  constexpr std::uintptr_t kLine = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(p + at.c);
  f(first);
  if constexpr (At::kColumns * sizeof(T) > kLine) f(first + kLine);
}
template <class At, class T>
inline void prefetch_at(At at, const T* p) {
  for_each_line(at, p, [](std::uintptr_t line) { prefetch(reinterpret_cast<const void*>(line)); });
}
// Prefetches for rows that are read one after the other. Each line is fetched far ahead into the second-level
// cache, because the first level is too small for all lines on their way. It is fetched again into the first
// level shortly before its use. A prefetch beyond a tensor's end does not fault.
template <class At, class T>
inline void prefetch_ahead(At at, const T* p) {
  constexpr std::uintptr_t kFar = 8192, kNear = 1024;
  constexpr int kSecondLevel = 2;
  for_each_line(at, p, [](std::uintptr_t line) {
    __builtin_prefetch(reinterpret_cast<const void*>(line + kFar), 0, kSecondLevel);
    prefetch(reinterpret_cast<const void*>(line + kNear));
  });
}

struct RowStatistics {
  float mean, rstd;
};

// The sums of one pass over a row: Σ(x − shift) and Σ(x − shift)².
struct RowSums {
  float shift, sum, squares;
};

// A shift close to the row's mean: the mean of the row's first vector if it exceeds that vector's deviation,
// otherwise 0.
template <class T>
inline float row_shift(const T* x, std::int64_t C) {
  const int n = C < kLanes ? static_cast<int>(C) : kLanes;
  const vec first = load_lanes(x, n);  // lanes that are not loaded are 0
  const float mean = sum(first) / static_cast<float>(n), squares = sum(first * first) / static_cast<float>(n);
  return mean * mean > 0.5f * squares ? mean : 0;
}

template <class At, class V>
inline void add_distance(At at, V x, vec from, V& sum, V& squares) {
  const V d = at.only(x - from);
  sum += d;
  squares = fma(d, d, squares);
}
template <class T>
inline RowSums row_sums(const T* x, std::int64_t C, float shift) {
  const vec from = set1(shift);
  const TwoSums sums =
      sum_row_twice<T>(C, [=](auto at, auto& a, auto& b) { add_distance(at, at.load(x), from, a, b); });
  return {shift, sums.a, sums.b};
}

// Computes the statistics in two more passes. The first finds the mean. The second finds the squares, and the
// rest that rounding left of Σ(x − mean). The rest corrects the result if it is more than half an ulp of the
// deviation, as in a constant row.
template <class T>
inline RowStatistics statistics_again(const T* x, std::int64_t C, float eps, bool centered) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  const float mean = centered ? inverse_C * row_sums(x, C, 0).sum : 0;
  const RowSums sums = row_sums(x, C, mean);
  const float squares = inverse_C * sums.squares;
  float rest = centered ? inverse_C * sums.sum : 0;
  if (rest * rest <= 0x1p-48f * squares) rest = 0;
  const float variance = squares - rest * rest;
  return {mean + rest, 1.0f / __builtin_sqrtf((variance < 0 ? 0 : variance) + eps)};
}

// If the row is not centered, the mean is 0 and rstd is 1 / root mean square. The sums suffice if the shift
// lies within two deviations of the mean, because the subtraction then loses only two or three bits.
// Otherwise, and if the sums are not finite, the row is read again.
template <class T>
inline RowStatistics statistics(const RowSums& sums, const T* x, std::int64_t C, float eps, bool centered) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  const float distance = centered ? inverse_C * sums.sum : 0;
  // Explicit fused products give the same bits at every place where this function is inlined.
  const float variance = __builtin_fmaf(-distance, distance, inverse_C * sums.squares);
  if (!(distance * distance <= 4 * variance)) return statistics_again(x, C, eps, centered);
  const float mean = centered ? __builtin_fmaf(inverse_C, sums.sum, sums.shift) : 0;
  return {mean, 1.0f / __builtin_sqrtf(variance + eps)};
}
template <class T>
inline RowStatistics statistics(const T* x, std::int64_t C, float eps, bool centered = true) {
  return statistics(row_sums(x, C, centered ? row_shift(x, C) : 0), x, C, eps, centered);
}

// An output row, and how it is stored. If the tensor is much larger than the caches, the stores bypass them,
// so that the processor need not read each line before it writes it.
template <class T>
struct RowOut {
  T* row;
  bool past_caches;

  template <class At, class V>
  void put(At at, V v) const {
    past_caches ? at.stream(row, v) : at.store(row, v);
  }
};
// True if the tensor is large enough and its rows consist of whole lines of 64 bytes.
template <class T>
inline bool goes_past_caches(const T* first, std::int64_t rows, std::int64_t C) {
  constexpr std::int64_t kLeast = std::int64_t{4} << 20, kLine = 64;
  const auto row_bytes = C * static_cast<std::int64_t>(sizeof(T));
  return rows * row_bytes >= kLeast && row_bytes % kLine == 0 &&
         reinterpret_cast<std::uintptr_t>(first) % kLine == 0;
}

// weight and bias may be null, which means 1 and 0. ahead(at) prefetches the next row at this position, so
// that the arithmetic here hides the latency of memory.
template <class X, class P, class O, class Ahead>
inline void normalize(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                      std::int64_t C, const Ahead& ahead) {
  const vec m = set1(s.mean), r = set1(s.rstd);
  for_each_pair<O>(C, [=](auto at) {
    ahead(at);
    const auto y = (at.load(x) - m) * r;
    if (bias) {
      out.put(at, fma(y, at.load(weight), at.load(bias)));
    } else {
      out.put(at, weight ? y * at.load(weight) : y);
    }
  });
}
// Does the same and also sums the next row. The next row is thus read from memory once, because its sums need
// no separate pass.
template <class X, class P, class O>
inline RowSums normalize_and_sum(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                                 std::int64_t C, const X* next, bool centered) {
  const float shift = centered ? row_shift(next, C) : 0;
  const vec m = set1(s.mean), r = set1(s.rstd), from = set1(shift);
  const TwoSums sums = sum_row_twice<X>(C, [=](auto at, auto& a, auto& b) {
    prefetch_ahead(at, next);
    add_distance(at, at.load(next), from, a, b);
    const auto y = (at.load(x) - m) * r;
    if (bias) {
      out.put(at, fma(y, at.load(weight), at.load(bias)));
    } else {
      out.put(at, weight ? y * at.load(weight) : y);
    }
  });
  return {shift, sums.a, sums.b};
}

}  // namespace
}  // namespace warpwright::ops::simd
