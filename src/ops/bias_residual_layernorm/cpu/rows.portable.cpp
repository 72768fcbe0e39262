// Bias, residual connection and normalization for any dtype and instruction set, computed in fp32, or in fp64
// with fp64. The same passes over memory as the vector kernels (rows.inl).
#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/layernorm/cpu/portable.hpp"

namespace warpwright::ops {
namespace {

using namespace bias_residual_layernorm;
using namespace layernorm::portable;

template <class T, class P>
void forward_as(const Context& context, const SumForward& a) {
  using A = Arithmetic<T>;
  const T *x = data_of<const T>(a.x), *x_bias = data_of<const T>(a.x_bias),
          *residual = data_of<const T>(a.residual);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  T *sum = data_of<T>(a.sum), *out = data_of<T>(a.out);
  A *mean = data_of<A>(a.mean), *rstd = data_of<A>(a.rstd), *scratch = static_cast<A*>(context.scratch());
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1], parts = layernorm::backward_parts(N);
  const A eps = static_cast<A>(a.eps);
  const bool centered = !a.rms;
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

void forward(const Context& context, const SumForward& args) {
  visit_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.weight.dtype == args.x.dtype ? forward_as<T, T>(context, args) : forward_as<T, float>(context, args);
  });
  layernorm::keep_lost_columns(norm_of(args, args.sum), args.sum);
}

}  // namespace

WARPWRIGHT_KERNEL(BiasResidualLayerNormForward, "cpu.portable"_kernel) = {.needs = Needs::cpu,
                                                                          .dtypes = kFloatingDTypes,
                                                                          .run = run_as_sum<forward>,
                                                                          .workspace = cpu_workspace,
                                                                          .configuration = cpu_parts};
WARPWRIGHT_KERNEL(ResidualLayerNormForward, "cpu.portable"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run_as_sum<forward>, .configuration = cpu_parts};

}  // namespace warpwright::ops
