// The destination of sums that a thread stores one by one.
#pragma once

#include <cstdint>

#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/parts.hpp"

namespace warpwright::ops::matmul::cuda {

// T: the type of the factors.
template <class T, class Out>
struct Result {
  Out* data;
  std::int64_t stride;
  const T* bias = nullptr;        // added by column
  const Out* residual = nullptr;  // added to the scaled sum; `data` itself: += instead of =
  std::int64_t residual_stride = 0;
  float scale = 1;  // multiplies the sum and its bias

  __device__ float finish(std::int64_t row, std::int64_t col, float sum) const {
    if (bias) sum += gpu::to_float(bias[col]);
    sum *= scale;
    if (residual) sum += gpu::to_float(residual[row * residual_stride + col]);
    return sum;
  }
  __device__ void store(std::int64_t row, std::int64_t col, float sum) const {
    data[row * stride + col] = gpu::from_float<Out>(finish(row, col, sum));
  }
};

template <class T>
Result<T, float> result_of(const MatmulDw& args) {
  auto* const dweight = args.dweight.as<float>();
  const std::int64_t stride = args.x.shape[1];
  return {dweight, stride, nullptr, args.store == Store::add ? dweight : nullptr, stride};
}

// The whole forward, or its product and bias if an activation follows in a separate pass.
template <class T, class Out>
Result<T, Out> result_of(const MatmulForward& args) {
  const Tensor& product = product_of(args);
  Result<T, Out> result{static_cast<Out*>(product.data), leading_of(product),
                        static_cast<const T*>(args.bias.data)};
  if (ends_in_a_pass(args)) return result;
  result.scale = args.scale;
  result.residual = static_cast<const Out*>(args.residual.data);
  if (args.residual) result.residual_stride = leading_of(args.residual);
  return result;
}

// Calls f.operator()<T, Out>() for factors of T and a result of T or fp32.
template <class F>
void visit_result_dtype(DType factors, DType result, F&& f) {
  gpu::visit_gpu_dtype(factors, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2) {
      if (result == DType::f32) return f.template operator()<T, float>();
    }
    f.template operator()<T, T>();
  });
}

}  // namespace warpwright::ops::matmul::cuda
