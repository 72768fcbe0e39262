// N consecutive elements of T that belong to one thread, in as many accesses of 16 bytes as they need.
// Tensors of different dtypes in one row are thus processed with the same N.
#pragma once

#include "ops/cuda/vector.cuh"

namespace warpwright::ops::norm::cuda {

// A priority in the second-level cache (PTX ISA, createpolicy): evicted last, or normal. Rows that exceed
// this cache are read with the first, although they are read only once: if as much data is written at the
// same time, the reads are faster this way (docs/kernels.md).
__device__ inline std::uint64_t l2_priority(bool last) {
  std::uint64_t as_last, as_usual;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(as_last));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(as_usual));
  return last ? as_last : as_usual;
}

template <class T, int N>
struct Lanes {
  static constexpr int kEach = N < gpu::kPackedLanes<T> ? N : gpu::kPackedLanes<T>;
  static constexpr int kUnits = N / kEach;  // accesses
  using Unit = gpu::Packed<T, kEach>;

  Unit units[kUnits];

  static __device__ Lanes load(const T* p) {
    Lanes lanes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) lanes.units[i] = Unit::load(p + i * kEach);
    return lanes;
  }
  static __device__ Lanes load(const T* p, std::uint64_t priority) {
    static_assert(sizeof(Unit) == 16);
    Lanes lanes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      auto& word = reinterpret_cast<uint4&>(lanes.units[i]);
      asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                   : "l"(p + i * kEach), "l"(priority));
    }
    return lanes;
  }
  static __device__ Lanes zero() {
    Lanes lanes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) lanes.units[i] = Unit::zero();
    return lanes;
  }
  static __device__ Lanes from_floats(const float (&values)[N]) {
    Lanes lanes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float part[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) part[j] = values[i * kEach + j];
      lanes.units[i] = Unit::from_floats(part);
    }
    return lanes;
  }
  static __device__ Lanes filled(float value) {
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = value;
    return from_floats(values);
  }
  __device__ void store(T* p, bool streaming = false) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (streaming) {
        units[i].store_streaming(p + i * kEach);
      } else {
        units[i].store(p + i * kEach);
      }
    }
  }
  __device__ float operator[](int lane) const {
    return units[lane / kEach][lane % kEach];
  }
  __device__ void forget() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i].forget();
  }
  __device__ void forget(unsigned zero) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i].forget(zero);
  }
};

}  // namespace warpwright::ops::norm::cuda
