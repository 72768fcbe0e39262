// Bias, residual connection and normalization on a CPU, a row at a time. Memory-bound: 3 passes of the tensor
// (x, residual, out), 4 if the sum is stored, ~10 FLOP an element; the row's second and third reading come
// from L1.
#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/cpu/isa.hpp"
#include "ops/cpu/layernorm.hpp"

namespace warpwright::ops {
namespace {

using namespace bias_residual_layernorm;
using namespace simd;

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

// The row's sum, to a row of T or of floats.
template <class T, class To>
inline void add_rows(const T* x, const T* x_bias, const T* residual, To* sum, std::int64_t C) {
  for_each_pair<T>(C, [&](auto at) {
    auto total = at.load(x);
    if (x_bias) total += at.load(x_bias);
    at.store(sum, total + at.load(residual));
  });
}

template <class T, class P>
void forward_as(const Context& context, const SumForward& a) {
  const T *x = data_of<const T>(a.x), *x_bias = data_of<const T>(a.x_bias),
          *residual = data_of<const T>(a.residual);
  const P *weight = data_of<const P>(a.weight), *bias = data_of<const P>(a.bias);
  T *sum = data_of<T>(a.sum), *out = data_of<T>(a.out);
  float *mean = data_of<float>(a.mean), *rstd = data_of<float>(a.rstd);
  auto* scratch = static_cast<float*>(context.scratch());
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1], parts = layernorm::backward_parts(N);
  const auto eps = static_cast<float>(a.eps);
  const bool centered = !a.rms;
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

void forward(const Context& context, const SumForward& args) {
  const auto visit = [&](auto tag) {
    using T = typename decltype(tag)::type;
    args.weight.dtype == args.x.dtype ? forward_as<T, T>(context, args) : forward_as<T, float>(context, args);
  };
  if (args.x.dtype == DType::f32) {
    visit(TypeTag<float>{});
  } else if (args.x.dtype == DType::f16) {
    visit(TypeTag<f16>{});
  } else {
    visit(TypeTag<bf16>{});
  }
  layernorm::keep_lost_columns(norm_of(args, args.sum), args.sum);
}

}  // namespace

WARPWRIGHT_KERNEL(BiasResidualLayerNormForward, kCpu) = {.needs = kThisCpu,
                                                         .dtypes = layernorm::kVectorDTypes,
                                                         .run = run_as_sum<forward>,
                                                         .workspace = cpu_workspace,
                                                         .configuration = cpu_parts};
WARPWRIGHT_KERNEL(ResidualLayerNormForward, kCpu) = {.needs = kThisCpu,
                                                     .dtypes = layernorm::kVectorDTypes,
                                                     .run = run_as_sum<forward>,
                                                     .configuration = cpu_parts};

}  // namespace warpwright::ops
