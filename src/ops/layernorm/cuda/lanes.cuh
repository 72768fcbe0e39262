// A thread's neighbours in a row where tensors of different dtypes stand side by side: N elements of T, in as
// many 16-byte accesses as they take.
#pragma once

#include "ops/cuda/vector.cuh"

namespace warpwright::ops::layernorm::cuda {

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

// What a thread needs of weight or bias: held from row to row where they are as narrow as x, else (fp32
// beside 16 bits, which would take the registers) read again for each row, from the first-level cache.
template <class X, class P, int packs>
class Parameters {
 public:
  static constexpr int kLanes = gpu::kPackedLanes<X>;
  static constexpr bool kHeld = sizeof(P) == sizeof(X);

  // `p`: of the thread's first pack, or null for `otherwise` in every column.
  __device__ Parameters(const P* p, float otherwise, int left, int threads)
      : from_(p), otherwise_(otherwise) {
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        held_[k] = Pack::filled(otherwise);
        if (p && k * threads < left) held_[k] = Pack::load(p + k * threads * kLanes);
      }
    }
  }
  // Of pack k, which lies inside the row.
  __device__ Lanes<P, kLanes> at(int k, int threads) {
    if constexpr (kHeld) {
      held_[k].forget();
      return held_[k];
    } else {
      return from_ ? Pack::load(from_ + k * threads * kLanes) : Pack::filled(otherwise_);
    }
  }
  // The same for a second use in a row, whose conversions are not to be found equal to those of the first
  // (see Packed::forget).
  __device__ Lanes<P, kLanes> at(int k, int threads, unsigned zero) {
    Pack pack = at(k, threads);
    if constexpr (kHeld) pack.forget(zero);
    return pack;
  }
  // From then on at(k) is this, where parameters are held.
  __device__ void hold(int k, const float (&values)[kLanes]) {
    if constexpr (kHeld) held_[k] = Pack::from_floats(values);
  }

 private:
  using Pack = Lanes<P, kLanes>;
  struct Nothing {};

  const P* from_;
  float otherwise_;
  std::conditional_t<kHeld, Pack, Nothing> held_[kHeld ? packs : 1];
};

}  // namespace warpwright::ops::layernorm::cuda
