// The sum of two sets of gradients on a GPU. One launch takes as many sums as its parameters hold.
// Memory-bound: 12 bytes and 1 FLOP per element. The terms are not read again, so their loads leave the
// caches to the sum, which the next sum or the norm reads.
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gradient_sum/gradient_sum.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace {

constexpr int kThreads = 256, kBlock = 8192;

struct Entry {
  float* sum;
  const float *first, *addend;  // first: the sum or another one
  std::int64_t elements;
  unsigned first_block;
};

template <class List>
__global__ void __launch_bounds__(kThreads) add_all(const __grid_constant__ List list) {
  using Floats = gpu::Packed<float>;
  const Entry t = list.at_block(blockIdx.x);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - t.first_block) * kBlock;
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
  std::int64_t i = begin;
  const auto address = [](const float* at) { return reinterpret_cast<std::uintptr_t>(at); };
  if ((address(t.sum) | address(t.first) | address(t.addend)) % 16 == 0) {
    i += threadIdx.x * Floats::kLanes;
#pragma unroll 4
    for (; i + Floats::kLanes <= end; i += kThreads * Floats::kLanes) {
      auto sum = Floats::load_streaming(t.first + i);
      const auto addend = Floats::load_streaming(t.addend + i);
#pragma unroll
      for (int j = 0; j < Floats::kLanes; ++j) sum.lanes[j] += addend.lanes[j];
      sum.store(t.sum + i);
    }
    i = end - end % Floats::kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) t.sum[i] = t.first[i] + t.addend[i];
}

void multi_tensor(const Context& context, const GradientSum& a) {
  const auto entry_of = [&](std::int64_t i) {
    const auto t = static_cast<std::size_t>(i);
    return Entry{static_cast<float*>(a.sums[t].data), static_cast<const float*>(a.firsts[t].data),
                 static_cast<const float*>(a.addends[t].data), a.sums[t].elements(), 0};
  };
  gpu::for_each_tensor_list<Entry>(static_cast<std::int64_t>(a.sums.size()), kBlock, entry_of,
                                   [&](const auto& list, unsigned blocks) {
                                     add_all<<<blocks, kThreads, 0, context.stream().get()>>>(list);
                                     warpwright::cuda::check_launch("gradient_sum cuda.multi_tensor");
                                   });
}

}  // namespace

WARPWRIGHT_KERNEL(GradientSum, "cuda.multi_tensor"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32}, .run = multi_tensor};

}  // namespace warpwright::ops
