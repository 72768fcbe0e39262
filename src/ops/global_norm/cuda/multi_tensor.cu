// The norm of all gradients on a GPU: a launch over all tensors (of up to 1,357) leaves a partial sum for
// each block of elements, and one thread block adds these up and writes norm and scale. Memory-bound: 4 bytes
// an element; 0.81 of the rate at which an H200 reads (docs/kernels.md). Squares are fp64, which a
// multiprocessor of an H200 widens 16 of in a clock, three times what its memory delivers.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/global_norm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::global_norm_kernels::cuda {
namespace {

constexpr int kThreads = 256, kFinishThreads = 1024;

struct Entry {
  const float* gradient;
  std::int64_t elements;
  unsigned first_block;
};

__device__ inline double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

__global__ void __launch_bounds__(kThreads)
    sum_squares(const __grid_constant__ gpu::TensorList<Entry> list, double* partials) {
  using Floats = gpu::Packed<float>;
  constexpr int kStep = kThreads * Floats::kLanes;
  __shared__ double shared[kThreads / gpu::kWarp];
  const Entry t = list.at_block(blockIdx.x);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - t.first_block) * kBlock;
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
  std::int64_t i = begin;
  double sums[Floats::kLanes] = {};
  if (reinterpret_cast<std::uintptr_t>(t.gradient) % 16 == 0) {
    i += threadIdx.x * Floats::kLanes;
#pragma unroll 8
    for (; i + Floats::kLanes <= end; i += kStep) {
      const auto g = Floats::load_streaming(t.gradient + i);
#pragma unroll
      for (int j = 0; j < Floats::kLanes; ++j) sums[j] += square(g.lanes[j]);
    }
    i = end - end % Floats::kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) sums[0] += square(t.gradient[i]);
  const double sum = gpu::block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

struct Result {
  float *norm, *scale;  // scale: or null
  double max_norm;
  bool keep_nan;
};

__global__ void __launch_bounds__(kFinishThreads)
    add_up(const double* partials, std::int64_t count, const Result result) {
  __shared__ double shared[kFinishThreads / gpu::kWarp];
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < count; i += kFinishThreads) sum += partials[i];
  const double norm = sqrt(gpu::block_sum(sum, shared));
  if (threadIdx.x > 0) return;
  const auto rounded = static_cast<float>(norm);
  *result.norm = rounded;
  if (!result.scale) return;
  if (!isfinite(rounded) || (result.keep_nan && isnan(*result.scale))) {
    *result.scale = NAN;
  } else {
    const bool clips = result.max_norm > 0 && norm > result.max_norm;
    *result.scale = clips ? static_cast<float>(result.max_norm / norm) : 1.0f;
  }
}

}  // namespace

void multi_tensor(const Context& context, const GlobalNorm& a) {
  auto* partials = static_cast<double*>(context.scratch());
  std::int64_t count = 0;
  const auto entry_of = [&](std::int64_t i) {
    const Tensor& g = a.gradients[static_cast<std::size_t>(i)];
    return Entry{static_cast<const float*>(g.data), g.elements(), 0};
  };
  gpu::for_each_tensor_list<Entry>(static_cast<std::int64_t>(a.gradients.size()), kBlock, entry_of,
                                   [&](const gpu::TensorList<Entry>& list, unsigned blocks) {
                                     sum_squares<<<blocks, kThreads, 0, context.stream().get()>>>(
                                         list, partials + count);
                                     warpwright::cuda::check_launch("global_norm cuda.multi_tensor, squares");
                                     count += blocks;
                                   });
  const Result result{static_cast<float*>(a.norm.data), static_cast<float*>(a.scale.data), a.max_norm,
                      a.keep_nan};
  add_up<<<1, kFinishThreads, 0, context.stream().get()>>>(partials, count, result);
  warpwright::cuda::check_launch("global_norm cuda.multi_tensor, sum");
}

}  // namespace warpwright::ops::global_norm_kernels::cuda
