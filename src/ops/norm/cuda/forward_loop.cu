// Normalization forward in its simplest parallel form, for rows of any length, alignment and dtypes. A warp,
// or a block for long rows, reads its row three times, one element per lane. The second and third read hit
// the caches.
#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/cuda/lost_columns.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr int kThreads = 256;

template <class X, class P, class O>
struct LoopRows {
  using A = Arithmetic<X>;
  const X* x;
  const X *x_bias, *residual;  // added to x if the kernel is `with_sum`; x_bias (C) or null
  const P *weight, *bias;      // may be null
  X* sum;                      // may be null: then the sum is not rounded
  O* out;
  A *mean, *rstd;  // may be null
  std::int64_t N, C;
  A eps;
  bool centered;
  const std::int32_t* rows_on_device = nullptr;  // number of rows to compute; may be null

  // The normalized value's input, after the sum has been stored. A thread reads only the elements of sum that
  // it wrote itself.
  template <bool with_sum>
  __device__ A at(std::int64_t row, std::int64_t c) const {
    const std::int64_t i = row * C + c;
    if constexpr (with_sum) {
      if (sum) return to_arithmetic<A>(sum[i]);
      return to_arithmetic<A>(x[i]) + element_or<A>(x_bias, c, 0) + to_arithmetic<A>(residual[i]);
    } else {
      return to_arithmetic<A>(x[i]);
    }
  }
};

template <class X, class P, class O, bool with_sum, bool long_row>
__global__ void __launch_bounds__(kThreads) forward_loop(const __grid_constant__ LoopRows<X, P, O> a) {
  using A = Arithmetic<X>;
  constexpr int kGroup = long_row ? kThreads : gpu::kWarp, kRows = kThreads / kGroup;
  __shared__ A sums[3][kThreads / gpu::kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kGroup;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  if (row >= a.N || (a.rows_on_device && row >= *a.rows_on_device)) return;
  const auto total = [&](A value, A* shared) {
    if constexpr (long_row) return gpu::block_sum(value, shared);
    return gpu::warp_sum(value);
  };
  if constexpr (with_sum) {
    for (std::int64_t c = thread; a.sum && c < a.C; c += kGroup) {
      const std::int64_t i = row * a.C + c;
      a.sum[i] = from_arithmetic<X>(to_arithmetic<A>(a.x[i]) + element_or<A>(a.x_bias, c, 0) +
                                    to_arithmetic<A>(a.residual[i]));
    }
  }
  A mean = 0, rest = 0, squares = 0;
  if (a.centered) {
    A sum = 0;
    for (std::int64_t c = thread; c < a.C; c += kGroup) sum += a.template at<with_sum>(row, c);
    mean = total(sum, sums[0]) / static_cast<A>(a.C);
  }
  for (std::int64_t c = thread; c < a.C; c += kGroup) {
    const A centered = a.template at<with_sum>(row, c) - mean;
    rest += centered;
    squares = fma(centered, centered, squares);
  }
  // The rest that rounding left of Σ(x − mean). It corrects the result if it is more than half an ulp of the
  // deviation.
  constexpr A kHalfUlp = std::is_same_v<A, double> ? static_cast<A>(0x1p-53) : static_cast<A>(0x1p-24);
  rest = a.centered ? total(rest, sums[1]) / static_cast<A>(a.C) : A(0);
  squares = total(squares, sums[2]) / static_cast<A>(a.C);
  if (rest * rest <= kHalfUlp * kHalfUlp * squares) rest = 0;
  const A variance = squares - rest * rest;
  const A rstd = 1 / sqrt((variance < 0 ? A(0) : variance) + a.eps);
  mean += rest;
  for (std::int64_t c = thread; c < a.C; c += kGroup) {
    const A normalized = (a.template at<with_sum>(row, c) - mean) * rstd;
    a.out[row * a.C + c] =
        from_arithmetic<O>(fma(normalized, element_or<A>(a.weight, c, 1), element_or<A>(a.bias, c, 0)));
  }
  if (thread == 0 && a.mean) a.mean[row] = mean;
  if (thread == 0 && a.rstd) a.rstd[row] = rstd;
}

template <bool with_sum, class X, class P, class O>
void launch(const LoopRows<X, P, O>& a, cudaStream_t stream) {
  if (a.N == 0) return;
  if (is_long_row(a.C)) {
    forward_loop<X, P, O, with_sum, true><<<static_cast<unsigned>(a.N), kThreads, 0, stream>>>(a);
  } else {
    constexpr int kRows = kThreads / gpu::kWarp;
    const auto blocks = static_cast<unsigned>((a.N + kRows - 1) / kRows);
    forward_loop<X, P, O, with_sum, false><<<blocks, kThreads, 0, stream>>>(a);
  }
  warpwright::cuda::check_launch("norm.forward cuda.loop");
}

template <class X, class P, class O>
void forward_as(const Context& context, const NormForward& args, NormTypes<X, P, O>) {
  using A = Arithmetic<X>;
  LoopRows<X, P, O> a{};
  a.x = data_of<const X>(args.x);
  a.x_bias = data_of<const X>(args.x_bias);
  a.residual = data_of<const X>(args.residual);
  a.weight = data_of<const P>(args.weight);
  a.bias = data_of<const P>(args.bias);
  a.sum = data_of<X>(args.sum);
  a.out = data_of<O>(args.out);
  a.mean = data_of<A>(args.mean);
  a.rstd = data_of<A>(args.rstd);
  a.N = args.x.shape[0];
  a.C = args.x.shape[1];
  a.eps = static_cast<A>(args.eps);
  a.centered = args.centered;
  a.rows_on_device = args.rows.as<std::int32_t>();
  const cudaStream_t stream = context.stream().get();
  if constexpr (std::is_same_v<X, O>) {
    if (args.residual) return launch<true>(a, stream);
  }
  launch<false>(a, stream);
}

void forward(const Context& context, const NormForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                   [&](auto types) { forward_as(context, args, types); });
  keep_lost_columns(context, args);
}

std::string configuration(const NormForwardProblem& p, const DeviceInfo&) {
  return std::string(owner_of_row(p.C)) + " a row";
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormForward, "cuda.loop"_kernel) = {.needs = Needs::gpu,
                                                      .dtypes = kFloatingDTypes,
                                                      .run = norm::cuda::forward,
                                                      .configuration = norm::cuda::configuration};

}  // namespace warpwright::ops
