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
  const T* bias = nullptr;  // added by column
  bool add = false;         // += instead of =
  float scale = 1;          // multiplies the sum and its bias
  const Out* residual = nullptr;
  std::int64_t residual_stride = 0;

  // The element without what is stored there already.
  __device__ float finish(std::int64_t row, std::int64_t col, float sum) const {
    return finish_biased(row, col, bias ? sum + gpu::to_float(bias[col]) : sum);
  }
  __device__ void store(std::int64_t row, std::int64_t col, float sum) const {
    store_finished(row, col, finish(row, col, sum));
  }
  // sum: with its bias.
  __device__ void store_biased(std::int64_t row, std::int64_t col, float sum) const {
    store_finished(row, col, finish_biased(row, col, sum));
  }

  // The same for neighbours. Their place, and that of their residual, is a multiple of their size.
  template <int count>
  __device__ void store_biased(std::int64_t row, std::int64_t col, float (&sums)[count]) const {
    using Neighbours = gpu::Packed<Out, count>;
    const auto add_matrix = [&](const Out* from) {
      const Neighbours more = Neighbours::load(from);
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] += more[i];
    };
    Out* const place = data + row * stride + col;
#pragma unroll
    for (float& sum : sums) sum *= scale;
    if (residual) add_matrix(residual + row * residual_stride + col);
    if (add) add_matrix(place);
    Neighbours::from_floats(sums).store(place);
  }

 private:
  __device__ float finish_biased(std::int64_t row, std::int64_t col, float sum) const {
    sum *= scale;
    if (residual) sum += gpu::to_float(residual[row * residual_stride + col]);
    return sum;
  }
  __device__ void store_finished(std::int64_t row, std::int64_t col, float sum) const {
    Out& place = data[row * stride + col];
    place = gpu::from_float<Out>(add ? gpu::to_float(place) + sum : sum);
  }
};

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
