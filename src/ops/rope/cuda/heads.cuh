// The arguments of the kernels for GPUs.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/rope/kernels.hpp"

namespace warpwright::ops::rope {

template <class T>
struct Heads {
  const T* from;
  T* to;
  std::int64_t from_row, from_head, to_row, to_head;  // strides
  const std::int32_t* positions;
  const float *cos, *sin;
  unsigned long long* wrong;  // −1 is the largest number
  std::int64_t N, P;
  int NH, HS, pairs, rest;  // rest: the elements of a head that are copied
  float sign;

  explicit Heads(const Rotation& r)
      : from(static_cast<const T*>(r.from.data)),
        to(static_cast<T*>(r.to.data)),
        from_row(r.from.strides[0]),
        from_head(r.from.strides[1]),
        to_row(r.to.strides[0]),
        to_head(r.to.strides[1]),
        positions(static_cast<const std::int32_t*>(r.positions.data)),
        cos(static_cast<const float*>(r.cos.data)),
        sin(static_cast<const float*>(r.sin.data)),
        wrong(static_cast<unsigned long long*>(r.wrong.data)),
        N(r.from.shape[0]),
        P(r.cos.shape[0]),
        NH(static_cast<int>(r.from.shape[1])),
        HS(static_cast<int>(r.from.shape[2])),
        pairs(static_cast<int>(r.cos.shape[1])),
        rest(r.in_place ? 0 : HS - 2 * pairs),
        sign(r.sign) {}

  __device__ bool has(std::int64_t position) const { return position >= 0 && position < P; }
  __device__ void report(std::int64_t n) const { atomicMin(wrong, static_cast<unsigned long long>(n)); }
  __device__ const T* from_at(std::int64_t n, int head) const {
    return from + n * from_row + head * from_head;
  }
  __device__ T* to_at(std::int64_t n, int head) const { return to + n * to_row + head * to_head; }
};

// Calls f(layout, Heads<T>), where decltype(layout)::value is the layout.
template <class F>
void visit_heads(const Rotation& r, const F& f) {
  gpu::visit_gpu_dtype(r.from.dtype, [&](auto type) {
    const Heads<typename decltype(type)::type> heads(r);
    r.layout == RopeLayout::half ? f(std::integral_constant<RopeLayout, RopeLayout::half>{}, heads)
                                 : f(std::integral_constant<RopeLayout, RopeLayout::interleaved>{}, heads);
  });
}

}  // namespace warpwright::ops::rope
