// Normalization forward on a CPU, one row at a time. Memory-bound: 2 passes over the tensor (x, out), 3 with
// a residual, 4 if the sum is stored, and ~10 FLOP per element. A row is read from memory once; its second
// read hits L1 (C ≤ 8,192 in fp32).
#include "ops/norm/cpu/types.hpp"

namespace warpwright::ops {
namespace {

using namespace norm;
using namespace simd;

template <class X, class P, class O>
void normalize_rows(const Context& context, const NormForward& a) {
  const X* x = data_of<const X>(a.x);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  O* out = data_of<O>(a.out);
  float *mean = data_of<float>(a.mean), *rstd = data_of<float>(a.rstd);
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  const auto eps = static_cast<float>(a.eps);
  const bool centered = a.centered;
  const bool past_caches = goes_past_caches(out, N, C);
  const int threads = context.threads();
#pragma omp parallel num_threads(threads)
  {
// Each thread has consecutive rows. It sums the next row while it normalizes the current one.
#pragma omp for schedule(static, 1) nowait
    for (int part = 0; part < threads; ++part) {
      const std::int64_t begin = N * part / threads, end = N * (part + 1) / threads;
      RowSums sums;
      for (std::int64_t row = begin; row < end; ++row) {
        const X *from = x + row * C, *next = row + 1 < end ? from + C : from;
        if (row == begin) sums = row_sums(from, C, centered ? row_shift(from, C) : 0);
        const RowStatistics s = statistics(sums, from, C, eps, centered);
        if (mean) mean[row] = s.mean;
        if (rstd) rstd[row] = s.rstd;
        sums = normalize_and_sum(from, s, weight, bias, RowOut<O>{out + row * C, past_caches}, C, next,
                                 centered);
      }
    }
    fence();
  }
}

// Adds x, x_bias and residual of one row. The result is a row of T or of floats.
template <class T, class To>
inline void add_rows(const T* x, const T* x_bias, const T* residual, To* sum, std::int64_t C) {
  for_each_pair<T>(C, [&](auto at) {
    auto total = at.load(x);
    if (x_bias) total += at.load(x_bias);
    at.store(sum, total + at.load(residual));
  });
}

template <class T, class P>
void add_and_normalize_rows(const Context& context, const NormForward& a) {
  const T *x = data_of<const T>(a.x), *x_bias = data_of<const T>(a.x_bias),
          *residual = data_of<const T>(a.residual);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  T *sum = data_of<T>(a.sum), *out = data_of<T>(a.out);
  float *mean = data_of<float>(a.mean), *rstd = data_of<float>(a.rstd);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1], parts = row_parts(N);
  const auto eps = static_cast<float>(a.eps);
  const bool centered = a.centered;
  const bool past_caches = goes_past_caches(out, N, C);
  const int threads = context.threads();
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t part = 0; part < parts; ++part) {
      for (std::int64_t row = part * N / parts; row < (part + 1) * N / parts; ++row) {
        const std::int64_t first = row * C, next = row + 1 < N ? first + C : first;
        const RowOut<T> to{out + first, past_caches};
        const auto ahead = [=](auto at) { prefetch_at(at, x + next), prefetch_at(at, residual + next); };
        RowStatistics s;
        if (sum) {
          add_rows(x + first, x_bias, residual + first, sum + first, C);
          s = statistics(sum + first, C, eps, centered);
          normalize(sum + first, s, weight, bias, to, C, ahead);
        } else {
          float* unrounded = scratch + part * C;
          add_rows(x + first, x_bias, residual + first, unrounded, C);
          s = statistics(unrounded, C, eps, centered);
          normalize(unrounded, s, weight, bias, to, C, ahead);
        }
        if (mean) mean[row] = s.mean;
        if (rstd) rstd[row] = s.rstd;
      }
    }
    fence();
  }
}

void forward(const Context& context, const NormForward& args) {
  if (!args.residual) keep_lost_columns(args);  // out may overwrite x
  visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                   [&]<class X, class P, class O>(NormTypes<X, P, O>) {
                     if constexpr (std::is_same_v<X, O>) {
                       if (args.residual) return add_and_normalize_rows<X, P>(context, args);
                     }
                     normalize_rows<X, P, O>(context, args);
                   });
  if (args.residual) keep_lost_columns(args);
}

}  // namespace

WARPWRIGHT_KERNEL(NormForward, kCpu) = {.needs = kThisCpu,
                                        .dtypes = kVectorDTypes,
                                        .run = forward,
                                        .workspace = cpu_forward_workspace,
                                        .configuration = cpu_forward_configuration};

}  // namespace warpwright::ops
