// Conversion of single elements to the type of the arithmetic, and a visitor of a normalization's dtypes. For
// the kernels that take any row and address.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/norm/types.hpp"

namespace warpwright::ops::norm::cuda {

template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class A, class T>
__device__ A to_arithmetic(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<A>(value);
  } else {
    return static_cast<A>(gpu::to_float(value));
  }
}
template <class T, class A>
__device__ T from_arithmetic(A value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return gpu::from_float<T>(static_cast<float>(value));
  }
}
template <class A, class T>
__device__ A element_or(const T* p, std::int64_t i, A otherwise) {
  return p ? to_arithmetic<A>(p[i]) : otherwise;
}

// True if a block owns a row of this length; otherwise a warp does.
constexpr bool is_long_row(std::int64_t C) {
  constexpr std::int64_t kLongRow = 2048;
  return C >= kLongRow;
}
inline const char* owner_of_row(std::int64_t C) {
  return is_long_row(C) ? "a block" : "a warp";
}

template <class F>
void visit_norm_dtype(DType dtype, const F& f) {
  if (dtype == DType::f64) {
    f(TypeTag<double>{});
  } else {
    gpu::visit_gpu_dtype(dtype, f);
  }
}

template <class F>
void visit_norm_types(DType x, const Tensor& weight, DType out, const F& f) {
  visit_norm_dtype(x, [&](auto tag) { visit_norm_types_of<typename decltype(tag)::type>(weight, out, f); });
}

}  // namespace warpwright::ops::norm::cuda
