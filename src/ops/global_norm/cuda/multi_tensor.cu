// The sums of squares on a GPU: a thread block for each block of a tensor's elements. One launch takes up to
// 1,357 tensors; more tensors need more launches. Memory-bound: 4 bytes per element (docs/memory-bound.md).
// Squares are fp64: a multiprocessor of an H200 converts 16 numbers per clock, three times what its memory
// delivers.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/global_norm/global_norm.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

constexpr int kThreads = 256;

struct Entry {
  const float* gradient;
  std::int64_t elements;
  unsigned first_block;
};

__device__ inline double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

// This thread's share of the squares of a tensor's elements from `begin` on. The order of the sum depends on
// the alignment.
using Floats = gpu::Packed<float>;
__device__ double squares_of(const Entry& t, std::int64_t begin) {
  double sums[Floats::kLanes] = {};
  const std::int64_t end = t.elements - begin < kSquaresBlock ? t.elements : begin + kSquaresBlock;
  std::int64_t i = begin;
  if (reinterpret_cast<std::uintptr_t>(t.gradient) % 16 == 0) {
    i += threadIdx.x * Floats::kLanes;
#pragma unroll 8
    for (; i + Floats::kLanes <= end; i += kThreads * Floats::kLanes) {
      const auto g = Floats::load_streaming(t.gradient + i);
#pragma unroll
      for (int j = 0; j < Floats::kLanes; ++j) sums[j] += square(g.lanes[j]);
    }
    i = end - end % Floats::kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) sums[0] += square(t.gradient[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class List>
__global__ void __launch_bounds__(kThreads) sum_squares(const __grid_constant__ List list, double* sums) {
  __shared__ double shared[kThreads / gpu::kWarp];
  const Entry t = list.at_block(blockIdx.x);
  const double mine = squares_of(t, static_cast<std::int64_t>(blockIdx.x - t.first_block) * kSquaresBlock);
  const double sum = gpu::block_sum(mine, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

void multi_tensor(const Context& context, const Squares& a) {
  auto* sums = static_cast<double*>(a.sums.data);
  const auto launch = [&](const auto& list, unsigned blocks) {
    sum_squares<<<blocks, kThreads, 0, context.stream().get()>>>(list, sums);
    warpwright::cuda::check_launch("global_norm.squares cuda.multi_tensor");
    sums += blocks;
  };
  const auto entry_of = [&](std::int64_t i) {
    const Tensor& g = a.gradients[static_cast<std::size_t>(i)];
    return Entry{static_cast<const float*>(g.data), g.elements(), 0};
  };
  gpu::for_each_tensor_list<Entry>(static_cast<std::int64_t>(a.gradients.size()), kSquaresBlock, entry_of,
                                   launch);
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Squares, "cuda.multi_tensor"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32}, .run = global_norm_kernels::multi_tensor};

}  // namespace warpwright::ops
