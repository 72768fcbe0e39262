// Rotary position embedding on a GPU in its simplest form: each thread rotates one pair or copies one
// element, in blocks of 128 threads. It is there to be read, and as a baseline for timings. 2 passes over (N,
// NH, HS), in place over the R rotary elements of each head.
#include "ops/rope/cuda/heads.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::rope {
namespace {

constexpr int kThreads = 128;

template <RopeLayout layout, class T>
__global__ void __launch_bounds__(kThreads) rotate(Heads<T> heads, std::int64_t count, int in_head) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int pair = static_cast<int>(i % in_head), head = static_cast<int>(i / in_head % heads.NH);
  const std::int64_t n = i / in_head / heads.NH, position = heads.positions[n];
  if (!heads.has(position)) return heads.report(n);
  const T* from = heads.from_at(n, head);
  T* to = heads.to_at(n, head);
  if (pair >= heads.pairs) {
    to[heads.pairs + pair] = from[heads.pairs + pair];
    return;
  }
  const int a = layout == RopeLayout::half ? pair : 2 * pair;
  const int b = layout == RopeLayout::half ? pair + heads.pairs : 2 * pair + 1;
  const float cos = heads.cos[position * heads.pairs + pair];
  const float sin = heads.sign * heads.sin[position * heads.pairs + pair];
  const float x_a = gpu::to_float(from[a]), x_b = gpu::to_float(from[b]);
  to[a] = gpu::from_float<T>(x_a * cos - x_b * sin);
  to[b] = gpu::from_float<T>(x_b * cos + x_a * sin);
}

void run(const Context& context, const Rotation& r, const char* name) {
  visit_heads(
      r, [&]<RopeLayout layout, class T>(std::integral_constant<RopeLayout, layout>, const Heads<T>& heads) {
        const int in_head = heads.pairs + heads.rest;
        const std::int64_t count = heads.N * heads.NH * in_head;
        if (count == 0) return;
        const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
        rotate<layout><<<blocks, kThreads, 0, context.stream().get()>>>(heads, count, in_head);
        warpwright::cuda::check_launch(name);
      });
}

void forward(const Context& context, const RopeForward& args) {
  run(context, rotation_of(args), "rope.forward cuda.plain");
}
void backward(const Context& context, const RopeBackward& args) {
  run(context, rotation_of(args), "rope.backward cuda.plain");
}

}  // namespace
}  // namespace warpwright::ops::rope

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RopeForward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = rope::forward};
WARPWRIGHT_KERNEL(RopeBackward, "cuda.plain"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = rope::backward};

}  // namespace warpwright::ops
