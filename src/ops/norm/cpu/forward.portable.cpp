// Normalization forward for any dtypes, shape and instruction set, computed in fp32 (fp64 for fp64). It runs
// the problems that the vector kernels (forward.inl) refuse, with the same passes over memory.
#include "ops/norm/cpu/portable.hpp"

#include "ops/norm/kernels.hpp"

namespace warpwright::ops {
namespace norm::portable {
namespace {

template <class X, class P, class O>
void normalize_rows(const Context& context, const NormForward& a) {
  using A = Arithmetic<X>;
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  const X* x = data_of<const X>(a.x);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  O* out = data_of<O>(a.out);
  A *mean = data_of<A>(a.mean), *rstd = data_of<A>(a.rstd);
  const int threads = context.threads();
  const bool centered = a.centered;
  const A eps = static_cast<A>(a.eps);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t row = 0; row < N; ++row) {
    const RowStatistics<A> s = normalize_row<A>(x + row * C, weight, bias, out + row * C, C, eps, centered);
    if (mean) mean[row] = s.mean;
    if (rstd) rstd[row] = s.rstd;
  }
}

template <class T, class P>
void add_and_normalize_rows(const Context& context, const NormForward& a) {
  using A = Arithmetic<T>;
  const T *x = data_of<const T>(a.x), *x_bias = data_of<const T>(a.x_bias),
          *residual = data_of<const T>(a.residual);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  T *sum = data_of<T>(a.sum), *out = data_of<T>(a.out);
  A *mean = data_of<A>(a.mean), *rstd = data_of<A>(a.rstd), *scratch = static_cast<A*>(context.scratch());
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1], parts = row_parts(N);
  const A eps = static_cast<A>(a.eps);
  const bool centered = a.centered;
  const int threads = context.threads();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) {
    for (std::int64_t row = part * N / parts; row < (part + 1) * N / parts; ++row) {
      const std::int64_t first = row * C;
      const auto added = [&](std::int64_t c) {
        return get<A>(x, first + c) + get_or<A>(x_bias, c, 0) + get<A>(residual, first + c);
      };
      RowStatistics<A> s;
      if (sum) {
        for (std::int64_t c = 0; c < C; ++c) put(sum, first + c, added(c));
        s = normalize_row<A>(sum + first, weight, bias, out + first, C, eps, centered);
      } else {
        A* unrounded = scratch + part * C;
        for (std::int64_t c = 0; c < C; ++c) unrounded[c] = added(c);
        s = normalize_row<A>(unrounded, weight, bias, out + first, C, eps, centered);
      }
      if (mean) mean[row] = s.mean;
      if (rstd) rstd[row] = s.rstd;
    }
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
}  // namespace norm::portable

WARPWRIGHT_KERNEL(NormForward, "cpu.portable"_kernel) = {.needs = Needs::cpu,
                                                         .dtypes = kFloatingDTypes,
                                                         .run = norm::portable::forward,
                                                         .workspace = norm::cpu_forward_workspace,
                                                         .configuration = norm::cpu_forward_configuration};

}  // namespace warpwright::ops
