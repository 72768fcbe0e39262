// The norm of all gradients on a GPU. One launch takes up to 1,357 tensors; more tensors need more launches.
// The GPU's resident thread blocks walk over the tensors' blocks, and each leaves a partial sum. They wait
// for each other, and then the first one adds the partial sums and writes norm and scale. The launch is
// cooperative and uses CUDA's barrier, because a counter of ours would need another operation that sets it
// to 0. The bits depend on the GPU's number of multiprocessors, not on timing. Memory-bound: 4 bytes per
// element (docs/kernels.md). Squares are fp64: a multiprocessor of an H200 converts 16 numbers per clock,
// three times what its memory delivers.
#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/global_norm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOfMultiprocessor = 4;

struct Entry {
  const float* gradient;
  std::int64_t elements;
  unsigned first_block;
};

__device__ inline double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

// Adds the squares of one block of a tensor's elements to `sums`, which has one sum for each lane of a pack.
using Floats = gpu::Packed<float>;
__device__ void add_squares(double (&sums)[Floats::kLanes], const Entry& t, std::int64_t begin) {
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
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
}

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

// blocks: the number of blocks of the list's elements. The partial sums of this list follow the `before` sums
// of earlier lists. Each launch writes the result of all lists so far, and the last one that of all.
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor)
    sum_squares(const __grid_constant__ gpu::TensorList<Entry> list, unsigned blocks, double* partials,
                std::int64_t before, const Result result) {
  __shared__ double shared[kThreads / gpu::kWarp];
  double sums[Floats::kLanes] = {};
  for (unsigned block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Entry t = list.at_block(block);
    add_squares(sums, t, static_cast<std::int64_t>(block - t.first_block) * kBlock);
  }
  const double mine = gpu::block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
  if (threadIdx.x == 0) partials[before + blockIdx.x] = mine;

  cooperative_groups::this_grid().sync();
  if (blockIdx.x > 0) return;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < before + gridDim.x; i += kThreads) sum += partials[i];
  sum = gpu::block_sum(sum, shared);
  if (threadIdx.x == 0) result.write(sum);
}

int most_thread_blocks(const DeviceInfo& device) {
  return device.gpu.multiprocessors * kBlocksOfMultiprocessor;
}

std::size_t multi_tensor_workspace(const GlobalNormProblem& p, const DeviceInfo& device) {
  const std::int64_t lists = p.tensors / gpu::TensorList<Entry>::kCapacity + 1;
  return static_cast<std::size_t>(lists * most_thread_blocks(device)) * sizeof(double);
}

void multi_tensor(const Context& context, const GlobalNorm& a) {
  auto* partials = static_cast<double*>(context.scratch());
  const Result result{static_cast<float*>(a.norm.data), static_cast<float*>(a.scale.data), a.max_norm,
                      a.keep_nan};
  std::int64_t before = 0;
  const auto launch = [&](const gpu::TensorList<Entry>& list, unsigned blocks) {
    const unsigned grid = std::clamp(blocks, 1u, static_cast<unsigned>(most_thread_blocks(context.device())));
    const void* arguments[] = {&list, &blocks, &partials, &before, &result};
    warpwright::cuda::check(
        cudaLaunchCooperativeKernel(sum_squares, dim3(grid), dim3(kThreads), const_cast<void**>(arguments), 0,
                                    context.stream().get()),
        "global_norm cuda.multi_tensor");
    before += grid;
  };
  const auto entry_of = [&](std::int64_t i) {
    const Tensor& g = a.gradients[static_cast<std::size_t>(i)];
    return Entry{static_cast<const float*>(g.data), g.elements(), 0};
  };
  gpu::for_each_tensor_list<Entry>(static_cast<std::int64_t>(a.gradients.size()), kBlock, entry_of, launch);
  if (before == 0) launch({}, 0);  // no elements: the norm is 0
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GlobalNorm, "cuda.multi_tensor"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = DTypes{DType::f32},
    .run = global_norm_kernels::multi_tensor,
    .workspace = global_norm_kernels::multi_tensor_workspace};

}  // namespace warpwright::ops
