// Layer normalization forward in its plainest parallel form: a warp loops over its row three times, an
// element a lane, and finds it in the caches the second and third time. Any row length, any alignment.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/layernorm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::layernorm::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / gpu::kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_loop(const T* x, const T* weight, const T* bias, T* out, float* mean, float* rstd, std::int64_t N,
                 std::int64_t C, float eps) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / gpu::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  if (row >= N) return;
  x += row * C;
  out += row * C;
  float sum = 0, squares = 0;
  for (std::int64_t c = lane; c < C; c += gpu::kWarp) sum += gpu::to_float(x[c]);
  const float m = gpu::warp_sum(sum) / static_cast<float>(C);
  for (std::int64_t c = lane; c < C; c += gpu::kWarp) {
    const float centered = gpu::to_float(x[c]) - m;
    squares = fmaf(centered, centered, squares);
  }
  const float r = rsqrtf(gpu::warp_sum(squares) / static_cast<float>(C) + eps);
  for (std::int64_t c = lane; c < C; c += gpu::kWarp) {
    const float normalized = (gpu::to_float(x[c]) - m) * r;
    out[c] = gpu::from_float<T>(fmaf(normalized, gpu::to_float(weight[c]), gpu::to_float(bias[c])));
  }
  if (lane == 0 && mean) mean[row] = m;
  if (lane == 0 && rstd) rstd[row] = r;
}

}  // namespace

void warp_loop_forward(const Context& context, const NormForward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  if (N == 0) return;
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto blocks = static_cast<unsigned>((N + kRows - 1) / kRows);
    forward_loop<<<blocks, kThreads, 0, context.stream().get()>>>(
        static_cast<const T*>(args.x.data), static_cast<const T*>(args.weight.data),
        static_cast<const T*>(args.bias.data), static_cast<T*>(args.out.data),
        static_cast<float*>(args.mean.data), static_cast<float*>(args.rstd.data), N, C,
        static_cast<float>(args.eps));
    warpwright::cuda::check_launch("layernorm.forward cuda.warp_loop");
  });
}

}  // namespace warpwright::ops::layernorm::cuda
