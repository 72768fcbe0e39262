// The sum of two sets of gradients on a GPU. One launch takes up to 1,017 pairs of tensors. Memory-bound: 12
// bytes and 1 FLOP per element. The addend is not read again, so its loads leave the caches to the sum, which
// the next sum or the norm reads.
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gradient_sum/gradient_sum.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace {

constexpr int kThreads = 256, kBlock = 8192;

struct Entry {
  float* sum;
  const float* addend;
  std::int64_t elements;
  unsigned first_block;
};

__global__ void __launch_bounds__(kThreads) add_all(const __grid_constant__ gpu::TensorList<Entry> list) {
  using Floats = gpu::Packed<float>;
  const Entry t = list.at_block(blockIdx.x);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - t.first_block) * kBlock;
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
  std::int64_t i = begin;
  if ((reinterpret_cast<std::uintptr_t>(t.sum) | reinterpret_cast<std::uintptr_t>(t.addend)) % 16 == 0) {
    i += threadIdx.x * Floats::kLanes;
#pragma unroll 4
    for (; i + Floats::kLanes <= end; i += kThreads * Floats::kLanes) {
      auto sum = Floats::load(t.sum + i);
      const auto addend = Floats::load_streaming(t.addend + i);
#pragma unroll
      for (int j = 0; j < Floats::kLanes; ++j) sum.lanes[j] += addend.lanes[j];
      sum.store(t.sum + i);
    }
    i = end - end % Floats::kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) t.sum[i] += t.addend[i];
}

void multi_tensor(const Context& context, const GradientSum& a) {
  const auto entry_of = [&](std::int64_t i) {
    const Tensor &sum = a.sums[static_cast<std::size_t>(i)], &addend = a.addends[static_cast<std::size_t>(i)];
    return Entry{static_cast<float*>(sum.data), static_cast<const float*>(addend.data), sum.elements(), 0};
  };
  gpu::for_each_tensor_list<Entry>(static_cast<std::int64_t>(a.sums.size()), kBlock, entry_of,
                                   [&](const gpu::TensorList<Entry>& list, unsigned blocks) {
                                     add_all<<<blocks, kThreads, 0, context.stream().get()>>>(list);
                                     warpwright::cuda::check_launch("gradient_sum cuda.multi_tensor");
                                   });
}

}  // namespace

WARPWRIGHT_KERNEL(GradientSum, "cuda.multi_tensor"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32}, .run = multi_tensor};

}  // namespace warpwright::ops
