// Element by element through the backward of a normalization, for the kernels that take any row and address.
#pragma once

#include <cmath>

#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/cuda/lost_columns.cuh"

namespace warpwright::ops::norm::cuda {

template <class X, class P, class O>
struct BackwardElements {
  using A = Arithmetic<X>;
  const O *dout, *out;  // out: replaces x
  const X *x, *addend;  // addend: added to dx, or null; may be dx
  const P *weight, *bias;
  const A *mean, *rstd;
  X* dx;
  A* parts;  // of dweight and dbias: (parts, 2, C)
  KeptColumns<X> kept;
  LostRule<A> lost;
  std::int64_t N, C, rows_per_part;
  bool centered;

  __device__ A row_mean(std::int64_t row) const { return centered && mean ? mean[row] : A(0); }
};

// Rounds the product before it is added to anything, so that a gradient that is 0 by its formula (C = 1) is
// 0.
__device__ inline float product(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ inline double product(double a, double b) {
  return __dmul_rn(a, b);
}

template <class X, class P, class O>
BackwardElements<X, P, O> backward_elements(const NormBackward& args, void* parts,
                                            std::int64_t rows_per_part) {
  using A = Arithmetic<X>;
  return {data_of<const O>(args.dout),
          data_of<const O>(args.out),
          data_of<const X>(args.x),
          args.dx_store == Store::add ? data_of<const X>(args.dx) : data_of<const X>(args.dsum),
          data_of<const P>(args.weight),
          data_of<const P>(args.bias),
          data_of<const A>(args.mean),
          data_of<const A>(args.rstd),
          data_of<X>(args.dx),
          static_cast<A*>(parts),
          kept_columns_of<X>(args.lost),
          LostRule<A>::of(args.dout.dtype),
          args.dx.shape[0],
          args.dx.shape[1],
          rows_per_part,
          args.centered};
}

// A column's parameters, and its x̂ by row.
template <class X, class P, class O>
struct BackwardColumn {
  using A = Arithmetic<X>;
  const BackwardElements<X, P, O>& a;
  const std::int64_t c;
  const A weight = element_or<A>(a.weight, c, 1), bias = element_or<A>(a.bias, c, 0);
  const bool is_lost = a.out && a.lost(weight, bias);
  const int place = is_lost ? a.kept.place(static_cast<int>(c), a.kept.places()) : -1;
  const A inverse = is_lost ? static_cast<A>(NAN) : 1 / weight;

  __device__ A x_hat(std::int64_t row, A mean, A rstd) const {
    const std::int64_t i = row * a.C + c;
    if (!a.out) return (to_arithmetic<A>(a.x[i]) - mean) * rstd;
    if (place < 0) return (to_arithmetic<A>(a.out[i]) - bias) * inverse;
    return (to_arithmetic<A>(a.kept.values[row * a.kept.capacity + place]) - mean) * rstd;
  }
  // dx, with the row's means of g and of g·x̂.
  __device__ X gradient(std::int64_t row, A d, A x_hat, A rstd, A mean_g, A mean_gx) const {
    A gradient = rstd * (product(d, weight) - mean_g - x_hat * mean_gx);
    if (a.addend) gradient += to_arithmetic<A>(a.addend[row * a.C + c]);
    return from_arithmetic<X>(gradient);
  }
};

// The means of g and of g·x̂ over a row, which a warp or a block of kGroup threads owns. All its threads call
// this, and get the result. shared: two arrays with an element per warp.
template <int kGroup, class X, class P, class O>
__device__ void row_means_of(const BackwardElements<X, P, O>& a, std::int64_t row, Arithmetic<X>* shared,
                             Arithmetic<X>& mean_g, Arithmetic<X>& mean_gx) {
  using A = Arithmetic<X>;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  const A m = a.row_mean(row), r = a.rstd[row];
  A sum_g = 0, sum_gx = 0;
  for (std::int64_t c = thread; c < a.C; c += kGroup) {
    const std::int64_t i = row * a.C + c;
    const A d = to_arithmetic<A>(a.dout[i]), g = product(d, element_or<A>(a.weight, c, 1));
    sum_g += g;
    if (a.out) {
      sum_gx += d * (to_arithmetic<A>(a.out[i]) - element_or<A>(a.bias, c, 0));
    } else {
      sum_gx += g * ((to_arithmetic<A>(a.x[i]) - m) * r);
    }
  }
  // Replaces the contribution of out by the kept values of lost columns.
  for (int place = thread; a.out && place < a.kept.places(); place += kGroup) {
    const std::int64_t c = a.kept.columns[1 + place], i = row * a.C + c;
    const A x_hat = (to_arithmetic<A>(a.kept.values[row * a.kept.capacity + place]) - m) * r;
    const A told = to_arithmetic<A>(a.out[i]) - element_or<A>(a.bias, c, 0);
    sum_gx += to_arithmetic<A>(a.dout[i]) * (element_or<A>(a.weight, c, 1) * x_hat - told);
  }
  if constexpr (kGroup > gpu::kWarp) {
    sum_g = gpu::block_sum(sum_g, shared);
    sum_gx = gpu::block_sum(sum_gx, shared + kGroup / gpu::kWarp);
  } else {
    sum_g = gpu::warp_sum(sum_g);
    sum_gx = gpu::warp_sum(sum_gx);
  }
  mean_g = a.centered ? sum_g / static_cast<A>(a.C) : A(0);
  mean_gx = sum_gx / static_cast<A>(a.C);
}

}  // namespace warpwright::ops::norm::cuda
