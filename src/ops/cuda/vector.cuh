// Loads and stores elements in a GPU's memory, up to 16 bytes in one access, and converts them to floats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"

namespace warpwright::ops::gpu {

// Calls f(TypeTag<T>{}) with CUDA's type for fp32, bf16 or fp16, the dtypes in kGpuDTypes.
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

// The number of elements in 16 bytes.
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

// Two numbers of 16 bits share a register from load to use. Held one by one, each would take a register.
template <class T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  static __device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ unsigned of(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  }
};
template <>
struct Pair<__half> {
  static __device__ float low(unsigned pair) { return __low2float(reinterpret_cast<const __half2&>(pair)); }
  static __device__ float high(unsigned pair) { return __high2float(reinterpret_cast<const __half2&>(pair)); }
  static __device__ unsigned of(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  }
};
}  // namespace detail

// N consecutive elements as they are stored in memory, at an address that is a multiple of their size (2, 4,
// 8 or 16 bytes). The streaming accesses are for data that is read or written once: its lines are the first
// to be evicted from the caches.
template <class T, int N = kPackedLanes<T>>
class alignas(sizeof(T) * N) Packed {
 public:
  static constexpr int kLanes = N;

  static __device__ Packed load(const T* p) { return from_word(*reinterpret_cast<const Word*>(p)); }
  static __device__ Packed load_streaming(const T* p) {
    return from_word(__ldcs(reinterpret_cast<const Word*>(p)));
  }
  __device__ void store(T* p) const { *reinterpret_cast<Word*>(p) = word(); }
  __device__ void store_streaming(T* p) const { __stcs(reinterpret_cast<Word*>(p), word()); }

  static __device__ Packed zero() {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) packed.units_[i] = 0;
    return packed;
  }
  static __device__ Packed from_floats(const float (&values)[N]) {
    Packed packed;
    if constexpr (N == 1) {
      const T value = from_float<T>(values[0]);
      packed.units_[0] = reinterpret_cast<const unsigned short&>(value);
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        packed.units_[i] = detail::Pair<T>::of(values[2 * i], values[2 * i + 1]);
    }
    return packed;
  }
  __device__ void to_floats(float (&values)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = (*this)[i];
  }
  __device__ float operator[](int lane) const {
    if constexpr (N == 1) {
      return to_float(reinterpret_cast<const T&>(units_[0]));
    } else {
      return lane % 2 == 0 ? detail::Pair<T>::low(units_[lane / 2]) : detail::Pair<T>::high(units_[lane / 2]);
    }
  }
  // Makes the compiler treat these bits as new. In a loop it then converts them at each use. Otherwise it
  // would convert them before the loop and keep all the floats in registers.
  __device__ void forget() {
    if constexpr (N > 1) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) asm("" : "+r"(units_[i]));
    }
  }
  // Does the same in straight-line code, where the assembler would otherwise see that two conversions are
  // equal. `zero` is 0, but computed such that the assembler cannot know it.
  __device__ void forget(unsigned zero) {
    if constexpr (N > 1) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) units_[i] ^= zero;
    }
  }

 private:
  using Word = typename detail::Word<static_cast<int>(sizeof(T)) * N>::type;
  using Unit = std::conditional_t<N == 1, unsigned short, unsigned>;
  static constexpr int kUnits = N == 1 ? 1 : N / 2;

  static __device__ Packed from_word(Word w) {
    Packed packed;
    *reinterpret_cast<Word*>(packed.units_) = w;
    return packed;
  }
  __device__ Word word() const {
    return *reinterpret_cast<const Word*>(units_);
  }

  Unit units_[kUnits];
};

template <int N>
struct alignas(sizeof(float) * N) Packed<float, N> {
  static constexpr int kLanes = N;

  float lanes[N];

  static __device__ Packed load(const float* p) { return from_word(*reinterpret_cast<const Word*>(p)); }
  static __device__ Packed load_streaming(const float* p) {
    return from_word(__ldcs(reinterpret_cast<const Word*>(p)));
  }
  __device__ void store(float* p) const { *reinterpret_cast<Word*>(p) = word(); }
  __device__ void store_streaming(float* p) const { __stcs(reinterpret_cast<Word*>(p), word()); }

  static __device__ Packed zero() {
    Packed packed;
#pragma unroll
    for (int i = 0; i < N; ++i) packed.lanes[i] = 0;
    return packed;
  }
  static __device__ Packed from_floats(const float (&values)[N]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < N; ++i) packed.lanes[i] = values[i];
    return packed;
  }
  __device__ void to_floats(float (&values)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = lanes[i];
  }
  __device__ float operator[](int lane) const {
    return lanes[lane];
  }
  __device__ void forget() {}
  __device__ void forget(unsigned) {}

 private:
  using Word = typename detail::Word<static_cast<int>(sizeof(float)) * N>::type;

  static __device__ Packed from_word(Word w) {
    Packed packed;
    *reinterpret_cast<Word*>(packed.lanes) = w;
    return packed;
  }
  __device__ Word word() const {
    return *reinterpret_cast<const Word*>(lanes);
  }
};

// Loads and stores N floats in accesses of up to 16 bytes.
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

// True if all of these addresses are multiples of 16 bytes.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace warpwright::ops::gpu
