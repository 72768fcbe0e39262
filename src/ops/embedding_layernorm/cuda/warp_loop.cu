// Embedding and layer normalization on a GPU for rows of any length and alignment. The sum is computed three
// times, for the mean, for the variance and for out; the repeated reads hit the caches.
#include "ops/embedding_layernorm/cuda/rows.cuh"

namespace warpwright::ops {
namespace {

using namespace embedding_layernorm;

template <class T>
__global__ void __launch_bounds__(kThreads) warp_loops(const Arguments<T> a) {
  const int n = row_of_warp(a);
  if (n < 0) return;
  const Row<T> row(a, n);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const auto value = [&](int c) {
    const float sum = gpu::to_float(row.word[c]) + gpu::to_float(row.position[c]);
    return row.type ? sum + gpu::to_float(row.type[c]) : sum;
  };
  float sum = 0, squares = 0;
  for (int c = lane; c < a.C; c += gpu::kWarp) sum += value(c);
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const float mean = gpu::warp_sum(sum) * inverse_C;
  for (int c = lane; c < a.C; c += gpu::kWarp) {
    const float centered = value(c) - mean;
    squares = fmaf(centered, centered, squares);
  }
  const float rstd = rsqrtf(fmaf(gpu::warp_sum(squares), inverse_C, a.eps));
  for (int c = lane; c < a.C; c += gpu::kWarp) {
    row.out[c] = gpu::from_float<T>(
        fmaf((value(c) - mean) * rstd, gpu::to_float(a.weight[c]), gpu::to_float(a.bias[c])));
  }
}

void forward(const Context& context, const EmbeddingLayerNormForward& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(warp_loops<T>, context, Arguments<T>(args), "embedding_layernorm.forward cuda.warp_loop");
  });
}

}  // namespace

WARPWRIGHT_KERNEL(EmbeddingLayerNormForward, "cuda.warp_loop"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = forward};

}  // namespace warpwright::ops
