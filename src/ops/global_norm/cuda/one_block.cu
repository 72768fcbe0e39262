// The norm on a GPU, from one sum for each block of gradients. One thread block adds them in a fixed order:
// GPT-2 124M has 7,600 of them, or 60 KB.
#include "ops/cuda/reduce.cuh"
#include "ops/global_norm/global_norm.hpp"
#include "runtime/context.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

constexpr int kThreads = 1024;

struct Result {
  float *norm, *scale;  // scale may be null
  double max_norm;
  bool keep_nan;

  __device__ void write(double sum_of_squares) const {
    const double whole = sqrt(sum_of_squares);
    const auto rounded = static_cast<float>(whole);
    *norm = rounded;
    if (!scale) return;
    if (!isfinite(rounded) || (keep_nan && isnan(*scale))) {
      *scale = NAN;
    } else {
      const bool clips = max_norm > 0 && whole > max_norm;
      *scale = clips ? static_cast<float>(max_norm / whole) : 1.0f;
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    add_sums(const double* sums, std::int64_t blocks, const Result result) {
  __shared__ double shared[kThreads / gpu::kWarp];
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += kThreads) mine += sums[i];
  const double sum = gpu::block_sum(mine, shared);
  if (threadIdx.x == 0) result.write(sum);
}

void one_block(const Context& context, const GlobalNorm& a) {
  const Result result{static_cast<float*>(a.norm.data), static_cast<float*>(a.scale.data), a.max_norm,
                      a.keep_nan};
  add_sums<<<1, kThreads, 0, context.stream().get()>>>(static_cast<const double*>(a.sums.data),
                                                       a.sums.elements(), result);
  warpwright::cuda::check_launch("global_norm.norm cuda.one_block");
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GlobalNorm, "cuda.one_block"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32}, .run = global_norm_kernels::one_block};

}  // namespace warpwright::ops
