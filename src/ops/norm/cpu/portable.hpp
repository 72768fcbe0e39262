// Elements, sums and the normalization of a row in plain C++, for the portable kernels of ops/norm.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/norm/types.hpp"

namespace warpwright::ops::norm::portable {

// The type of the arithmetic on elements of X.
template <class X>
using Arithmetic = std::conditional_t<std::is_same_v<X, double>, double, float>;

template <class A, class T>
A get(const T* p, std::int64_t i) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<A>(p[i]);
  } else {
    return static_cast<A>(static_cast<float>(p[i]));
  }
}
template <class T, class A>
void put(T* p, std::int64_t i, A value) {
  p[i] = T(value);
}

template <class A, class P>
A get_or(const P* p, std::int64_t i, A otherwise) {
  return p ? get<A>(p, i) : otherwise;
}

// Sums a row in a fixed order, with as many running sums as a vector has lanes. New running sums begin every
// 512 elements, so that long rows are as accurate as short ones.
template <class A, class F>
A sum_row(std::int64_t C, const F& f) {
  constexpr int kSums = 16;
  constexpr std::int64_t kBlock = 512;
  A total = 0;
  for (std::int64_t c = 0; c < C;) {
    const std::int64_t end = C - c < kBlock ? C : c + kBlock;
    A sums[kSums] = {};
    for (; c + kSums <= end; c += kSums) {
      for (int j = 0; j < kSums; ++j) sums[j] += f(c + j);
    }
    for (int j = 0; c < end; ++c, ++j) sums[j] += f(c);
    for (int width = kSums / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
    }
    total += sums[0];
  }
  return total;
}

template <class F>
void visit_norm_types(DType x, const Tensor& weight, DType out, const F& f) {
  visit_dtype(x, [&](auto tag) { visit_norm_types_of<typename decltype(tag)::type>(weight, out, f); });
}

template <class A>
struct RowStatistics {
  A mean, rstd;
};

// Another pass finds the rest that rounding left of Σ(x − mean). The rest corrects the result if it is more
// than half an ulp of the deviation, as in a constant row. If the row is not centered, the mean is 0 and rstd
// is 1 / root mean square. weight and bias may be null, which means 1 and 0.
template <class A, class X, class P, class O>
RowStatistics<A> normalize_row(const X* x, const P* weight, const P* bias, O* out, std::int64_t C, A eps,
                               bool centered) {
  A mean = 0;
  if (centered) mean = sum_row<A>(C, [&](std::int64_t c) { return get<A>(x, c); }) / static_cast<A>(C);
  const A squares = sum_row<A>(C,
                               [&](std::int64_t c) {
                                 const A d = get<A>(x, c) - mean;
                                 return d * d;
                               }) /
                    static_cast<A>(C);
  A rest = 0;
  if (centered) rest = sum_row<A>(C, [&](std::int64_t c) { return get<A>(x, c) - mean; }) / static_cast<A>(C);
  constexpr A kHalfUlp = std::numeric_limits<A>::epsilon() / 2;
  if (rest * rest <= kHalfUlp * kHalfUlp * squares) rest = 0;
  const A variance = squares - rest * rest;
  const A rstd = 1 / std::sqrt((variance < 0 ? A(0) : variance) + eps);
  mean += rest;
  for (std::int64_t c = 0; c < C; ++c) {
    put(out, c, (get<A>(x, c) - mean) * rstd * get_or<A>(weight, c, 1) + get_or<A>(bias, c, 0));
  }
  return {mean, rstd};
}

}  // namespace warpwright::ops::norm::portable
