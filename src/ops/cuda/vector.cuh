// Elements in a GPU's memory, up to 16 bytes in one access, computed with as floats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace warpwright::ops::gpu {

// Calls f(TypeTag<T>{}) with CUDA's type for the elements of fp32, bf16 or fp16 (the dtypes that
// refuse_without_gpu lets pass).
template <class F>
void visit_gpu_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::bf16:
      return f(TypeTag<__nv_bfloat16>{});
    case DType::f16:
      return f(TypeTag<__half>{});
    default:
      throw_not_floating(dtype);
  }
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// As many as 16 bytes hold.
template <class T>
inline constexpr int kPackedLanes = 16 / sizeof(T);

namespace detail {
template <int bytes>
struct Word;
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};
}  // namespace detail

// N neighbours as they stand in memory, at an address that is a multiple of their size (2, 4, 8 or 16 bytes).
// Streaming accesses are marked as the first to leave the caches: for what is read or written once.
template <class T, int N = kPackedLanes<T>>
struct alignas(sizeof(T) * N) Packed {
  static constexpr int kLanes = N;
  using Word = typename detail::Word<static_cast<int>(sizeof(T)) * N>::type;

  T lanes[N];

  static __device__ Packed load(const T* p) { return from_word(*reinterpret_cast<const Word*>(p)); }
  static __device__ Packed load_streaming(const T* p) {
    return from_word(__ldcs(reinterpret_cast<const Word*>(p)));
  }
  __device__ void store(T* p) const { *reinterpret_cast<Word*>(p) = word(); }
  __device__ void store_streaming(T* p) const { __stcs(reinterpret_cast<Word*>(p), word()); }

  static __device__ Packed zero() {
    Packed packed;
#pragma unroll
    for (int i = 0; i < N; ++i) packed.lanes[i] = from_float<T>(0.0f);
    return packed;
  }
  static __device__ Packed from_floats(const float (&values)[N]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < N; ++i) packed.lanes[i] = from_float<T>(values[i]);
    return packed;
  }
  __device__ void to_floats(float (&values)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = to_float(lanes[i]);
  }
  __device__ float operator[](int lane) const {
    return to_float(lanes[lane]);
  }

 private:
  static __device__ Packed from_word(Word w) {
    Packed packed;
    *reinterpret_cast<Word*>(packed.lanes) = w;
    return packed;
  }
  __device__ Word word() const {
    return *reinterpret_cast<const Word*>(lanes);
  }
};

// N floats in 16-byte accesses.
template <int N>
__device__ void load_floats(const float* p, float (&values)[N]) {
  constexpr int kLanes = N < 4 ? N : 4;
#pragma unroll
  for (int i = 0; i < N; i += kLanes) {
    const auto packed = Packed<float, kLanes>::load(p + i);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[i + j] = packed.lanes[j];
  }
}
template <int N>
__device__ void store_floats(float* p, const float (&values)[N]) {
  constexpr int kLanes = N < 4 ? N : 4;
#pragma unroll
  for (int i = 0; i < N; i += kLanes) {
    Packed<float, kLanes> packed;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) packed.lanes[j] = values[i + j];
    packed.store(p + i);
  }
}

// Whether all of these addresses can be accessed 16 bytes at a time.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace warpwright::ops::gpu
