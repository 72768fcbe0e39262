// A row's statistics and its normalization, for ops/layernorm and the operations fused with it.
#pragma once

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

// Two sums over each of `rows` rows in a fixed order: f(c, n, a, b) adds what the n lanes from c on have to
// either. Two vectors of each, so that the additions do not wait for each other, and others every 32 vectors,
// so that long rows lose no more than short ones.
struct TwoSums {
  float a, b;
};
template <int rows, class F>
inline void sum_rows_twice(std::int64_t C, TwoSums (&sums)[rows], F&& f) {
  constexpr std::int64_t kBlock = 32 * kLanes;
  vec a[rows], b[rows];
  for (int r = 0; r < rows; ++r) a[r] = b[r] = zero();
  for (std::int64_t begin = 0; begin < C; begin += kBlock) {
    const std::int64_t end = C - begin < kBlock ? C : begin + kBlock;
    vec a0[rows], a1[rows], b0[rows], b1[rows];
    for (int r = 0; r < rows; ++r) a0[r] = a1[r] = b0[r] = b1[r] = zero();
    std::int64_t c = begin;
    for (; c + 2 * kLanes <= end; c += 2 * kLanes) {
      f(c, kLanes, a0, b0);
      f(c + kLanes, kLanes, a1, b1);
    }
    for (; c < end; c += kLanes) f(c, end - c < kLanes ? static_cast<int>(end - c) : kLanes, a0, b0);
    for (int r = 0; r < rows; ++r) {
      a[r] += a0[r] + a1[r];
      b[r] += b0[r] + b1[r];
    }
  }
  for (int r = 0; r < rows; ++r) sums[r] = {sum(a[r]), sum(b[r])};
}
template <class F>
inline TwoSums sum_row_twice(std::int64_t C, F&& f) {
  TwoSums sums[1];
  sum_rows_twice(C, sums, [&](std::int64_t c, int n, vec(&a)[1], vec(&b)[1]) { f(c, n, a[0], b[0]); });
  return sums[0];
}

// Whether a row, the one behind it and two rows of parameters are more than a core's first-level cache holds:
// rows that go through it together then share what the parameters cost.
template <class X, class P>
constexpr bool leaves_first_level(std::int64_t C) {
  constexpr std::int64_t kFirstLevel = 48 * 1024;
  return C * static_cast<std::int64_t>(2 * sizeof(X) + 2 * sizeof(P)) > kFirstLevel;
}

// Of what is read as it comes from memory, a constant distance ahead; behind a tensor's end nothing faults.
inline void prefetch_ahead(const void* p) {
  constexpr std::uintptr_t kAhead = 1024;
  prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + kAhead));
}

struct RowStatistics {
  float mean, rstd;
};

// What one pass finds of a row: Σ(x − shift) and Σ(x − shift)².
struct RowSums {
  float shift, sum, squares;
};

// 0, or the mean of the row's first vector where that is more than their deviation.
template <class T>
inline float row_shift(const T* x, std::int64_t C) {
  const int n = C < kLanes ? static_cast<int>(C) : kLanes;
  const vec first = load_lanes(x, n);  // lanes that are not loaded are 0
  const float mean = sum(first) / static_cast<float>(n), squares = sum(first * first) / static_cast<float>(n);
  return mean * mean > 0.5f * squares ? mean : 0;
}

inline void add_distance(vec x, vec from, int n, vec& sum, vec& squares) {
  vec d = x - from;
  if (n < kLanes) d = keep(d, n, zero());
  sum += d;
  squares = fma(d, d, squares);
}
template <class T>
inline RowSums row_sums(const T* x, std::int64_t C, float shift) {
  const vec from = set1(shift);
  const TwoSums sums = sum_row_twice(
      C, [=](std::int64_t c, int n, vec& a, vec& b) { add_distance(load_lanes(x + c, n), from, n, a, b); });
  return {shift, sums.a, sums.b};
}

// In two more passes, of which the first finds the mean and the second also what rounding left of Σ(x −
// mean): where that is more than half an ulp of the deviation, as in a constant row, it is put right.
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

// Not centered, the mean is 0 and rstd that of the root mean square. From the sums alone where the shift lies
// within two deviations of the mean, so that their difference loses two bits or three; else, and where they
// are not finite, from the row again.
template <class T>
inline RowStatistics statistics(const RowSums& sums, const T* x, std::int64_t C, float eps, bool centered) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  const float distance = centered ? inverse_C * sums.sum : 0;
  // Where a product is added it is said which: the same bits wherever this is inlined.
  const float variance = __builtin_fmaf(-distance, distance, inverse_C * sums.squares);
  if (!(distance * distance <= 4 * variance)) return statistics_again(x, C, eps, centered);
  const float mean = centered ? __builtin_fmaf(inverse_C, sums.sum, sums.shift) : 0;
  return {mean, 1.0f / __builtin_sqrtf(variance + eps)};
}
template <class T>
inline RowStatistics statistics(const T* x, std::int64_t C, float eps, bool centered = true) {
  return statistics(row_sums(x, C, centered ? row_shift(x, C) : 0), x, C, eps, centered);
}

// A row that is written, and by which way: a tensor much larger than the caches goes past them, or each line
// of it would be read first.
template <class T>
struct RowOut {
  T* row;
  bool past_caches;

  RowOut after(std::int64_t elements) const { return {row + elements, past_caches}; }

  void put(std::int64_t c, vec v, int n) const {
    if (past_caches && n == kLanes) {
      stream(row + c, v);
    } else {
      store_lanes(row + c, v, n);
    }
  }
};
// Past the caches where rows are whole lines of 64 bytes.
template <class T>
inline bool goes_past_caches(const T* first, std::int64_t rows, std::int64_t C) {
  constexpr std::int64_t kLeast = std::int64_t{8} << 20, kLine = 64;
  const auto row_bytes = C * static_cast<std::int64_t>(sizeof(T));
  return rows * row_bytes >= kLeast && row_bytes % kLine == 0 &&
         reinterpret_cast<std::uintptr_t>(first) % kLine == 0;
}

// weight and bias may be null: 1 and 0.
template <class X, class P>
inline vec normalized(const X* x, vec mean, vec rstd, const P* weight, const P* bias, std::int64_t c, int n) {
  const vec y = (load_lanes(x + c, n) - mean) * rstd;
  if (bias) return fma(y, load_lanes(weight + c, n), load_lanes(bias + c, n));
  return weight ? y * load_lanes(weight + c, n) : y;
}
// ahead(c) prefetches what of the next row stands at c: the arithmetic here hides its way from memory.
template <class X, class P, class O, class Ahead>
inline void normalize(const X* x, RowStatistics s, const P* weight, const P* bias, RowOut<O> out,
                      std::int64_t C, const Ahead& ahead) {
  const vec m = set1(s.mean), r = set1(s.rstd);
  for_each_vector(0, C, [=](std::int64_t c, int n) {
    ahead(c);
    out.put(c, normalized(x, m, r, weight, bias, c, n), n);
  });
}
// The same for `rows` rows beside each other, which read the parameters once, and the sums of the next ones,
// so that these come from memory once and are not read again for them.
template <int rows, class X, class P, class O>
inline void normalize_and_sum(const X* x, const RowStatistics (&s)[rows], const P* weight, const P* bias,
                              RowOut<O> out, std::int64_t C, const X* next, bool centered,
                              RowSums (&next_sums)[rows]) {
  vec m[rows], rstd[rows], from[rows];
  for (int r = 0; r < rows; ++r) {
    next_sums[r].shift = centered ? row_shift(next + r * C, C) : 0;
    from[r] = set1(next_sums[r].shift);
    m[r] = set1(s[r].mean);
    rstd[r] = set1(s[r].rstd);
  }
  TwoSums sums[rows];
  sum_rows_twice(C, sums, [&](std::int64_t c, int n, vec(&a)[rows], vec(&b)[rows]) {
    const vec w = weight ? load_lanes(weight + c, n) : set1(1),
              shift = bias ? load_lanes(bias + c, n) : zero();
    for (int r = 0; r < rows; ++r) {
      prefetch_ahead(next + r * C + c);
      add_distance(load_lanes(next + r * C + c, n), from[r], n, a[r], b[r]);
      const vec y = (load_lanes(x + r * C + c, n) - m[r]) * rstd[r];
      out.after(r * C).put(c, bias ? fma(y, w, shift) : weight ? y * w : y, n);
    }
  });
  for (int r = 0; r < rows; ++r) {
    next_sums[r].sum = sums[r].a;
    next_sums[r].squares = sums[r].b;
  }
}

}  // namespace
}  // namespace warpwright::ops::simd
