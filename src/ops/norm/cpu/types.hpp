// The combinations of dtypes that the CPU's vector kernels of ops/norm take. For files that are compiled for
// one instruction set.
#pragma once

#include "ops/cpu/isa.hpp"
#include "ops/cpu/norm.hpp"
#include "ops/norm/kernels.hpp"

namespace warpwright::ops {
namespace {

// dtypes of x, of the parameters and of out.
template <class X, class P, class O>
struct NormTypes {};

template <class F>
void visit_norm_types(DType x, const Tensor& weight, DType out, const F& f) {
  const bool wide_weight = weight && weight.dtype == DType::f32, wide_out = out == DType::f32;
  if (x == DType::f32) return f(NormTypes<float, float, float>{});
  const auto visit = [&](auto tag) {
    using X = typename decltype(tag)::type;
    if (!wide_weight) return f(NormTypes<X, X, X>{});
    if (wide_out) return f(NormTypes<X, float, float>{});
    f(NormTypes<X, float, X>{});
  };
  x == DType::f16 ? visit(TypeTag<f16>{}) : visit(TypeTag<bf16>{});
}

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

}  // namespace
}  // namespace warpwright::ops
