// Attention to a cache on a GPU, the readable way: one warp per query and head, one key after the other with
// an online softmax. Each lane has every 32nd element of a head. It takes every layout and alignment.
#include <string>

#include "ops/cached_attention/cuda/sequences.cuh"
#include "ops/cached_attention/cuda/softmax.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / gpu::kWarp;
constexpr int kMostElements = 8;  // of a head in a lane
constexpr std::int64_t kLargestHead = kMostElements * gpu::kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads) attend_plainly(const Arguments<T> a) {
  const std::int64_t task =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / gpu::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  gpu::wait_for_kernels_before();
  const auto n = static_cast<int>(task / a.NH), head = static_cast<int>(task % a.NH);
  if (n >= a.N) return;
  const RowOfSequence row = a.row(n);
  if (row.sequence < 0) return;
  const auto for_each_element = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kMostElements; ++i) {
      if (const int d = lane + i * gpu::kWarp; d < a.HS) f(i, d);
    }
  };
  float q[kMostElements] = {}, sums[kMostElements] = {};
  Softmax softmax;
  const int group = a.NH / a.KH, key_head = head / group;
  if (head % group == 0) a.template append<1>(row, n, key_head, lane, gpu::kWarp);
  const T* query = a.q.at(n, head);
  for_each_element([&](int i, int d) { q[i] = gpu::to_float(query[d]) * a.scale; });
  for (int j = row.first; j < row.last; ++j) {
    const bool is_new = j >= row.appended;
    const std::int64_t cached = is_new ? 0 : a.at(a.place(row, j, j / a.block_size), key_head);
    const T* key = is_new ? a.k.at(j + row.to_row, key_head) : a.keys + cached;
    const T* value = is_new ? a.v.at(j + row.to_row, key_head) : a.values + cached;
    float score = 0;
    for_each_element([&](int i, int d) { score = fmaf(q[i], gpu::to_float(key[d]), score); });
    score = gpu::warp_sum(score);
    const float factor = softmax.advance(score), p = softmax.weigh(score);
    for_each_element([&](int i, int d) { sums[i] = fmaf(sums[i], factor, p * gpu::to_float(value[d])); });
  }
  T* out = a.out.at(n, head);
  const bool has_keys = row.last > row.first;
  for_each_element(
      [&](int i, int d) { out[d] = gpu::from_float<T>(has_keys ? sums[i] / softmax.total : 0.0f); });
}

void plain_attention(const Context& context, const CachedAttention& args) {
  const std::int64_t tasks = args.q.shape[0] * args.q.shape[1];
  if (tasks == 0 || args.block_table.shape[0] == 0) return;
  gpu::visit_gpu_dtype(args.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const dim3 grid(static_cast<unsigned>((tasks + kWarps - 1) / kWarps));
    gpu::launch_overlapped(context, attend_plainly<T>, grid, kThreads, 0,
                           "cached_attention.forward cuda.plain", arguments_of<T>(args));
  });
}

Refusal refuse_large_heads(const CachedAttentionProblem& p, const DeviceInfo&) {
  if (p.HS > kLargestHead) return "head size above " + std::to_string(kLargestHead);
  return {};
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CachedAttention, "cuda.plain"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = cached::plain_attention,
                                                           .refuse = cached::refuse_large_heads};

}  // namespace warpwright::ops
