// The host's side: tensor maps, grids and shapes.
#pragma once

#include <algorithm>

#include "ops/attention/cuda/refuse.cuh"
#include "ops/attention/cuda/sm90/jobs.cuh"
#include "ops/cuda/hopper/tensor_map.hpp"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// Maps boxes of kBox rows and 64 columns of one head.
inline CUtensorMap map_of(const Tensor& t) {
  return map_boxes<3>(t.data, t.dtype, {t.shape[2], t.shape[1], t.shape[0]}, {t.strides[1], t.strides[0]},
                      {64, 1, kBox}, 128);
}

// Maps contiguous heads of 32 as the columns of one head, so that a box has two of them.
inline CUtensorMap map_of_packed(const Tensor& t) {
  if (t.shape[2] != 32) return map_of(t);
  return map_boxes<3>(t.data, t.dtype, {t.shape[1] * t.shape[2], 1, t.shape[0]}, {t.strides[0], t.strides[0]},
                      {64, 1, kBox}, 128);
}

// Zeros for the job counters of a call's kernels.
inline constexpr std::size_t kCounterBytes = 256;
inline unsigned* counters(const Context& context, void* scratch) {
  warpwright::cuda::check(cudaMemsetAsync(scratch, 0, kCounterBytes, context.stream().get()),
                          "clearing counters of tiles");
  return static_cast<unsigned*>(scratch);
}

// Blocks that stay on their multiprocessors.
inline unsigned resident(const Context& context, unsigned tiles, int each = 1) {
  return std::min(tiles, static_cast<unsigned>(each * context.device().gpu.multiprocessors));
}

// Calls f<T, head size, whether there is a window>() for a call that flash_sm90 accepts.
template <class Args, class F>
void visit_shape(const Args& a, F&& f) {
  const auto with_head = [&]<class T, int kHeadSize>() {
    a.window > 0 && a.window < a.k.shape[0] ? f.template operator()<T, kHeadSize, true>()
                                            : f.template operator()<T, kHeadSize, false>();
  };
  const auto with_type = [&]<class T>() {
    a.q.shape[2] == 64 ? with_head.template operator()<T, 64>() : with_head.template operator()<T, 128>();
  };
  a.q.dtype == DType::bf16 ? with_type.template operator()<__nv_bfloat16>()
                           : with_type.template operator()<__half>();
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
