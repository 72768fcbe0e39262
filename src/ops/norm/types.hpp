// The combinations of dtypes of a normalization: one dtype, or 16 bits with parameters of fp32, and then a
// result of either dtype. The namespace has no name, because files that are compiled for one instruction set
// include this (see "ISA files" in HACKING.md).
#pragma once

#include "core/tensor.hpp"

namespace warpwright::ops {
namespace {

// Types of x, of the parameters and of out.
template <class X, class P, class O>
struct NormTypes {};

// Calls f(NormTypes<X, P, O>{}).
template <class X, class F>
void visit_norm_types_of(const Tensor& weight, DType out, const F& f) {
  if constexpr (sizeof(X) == 2) {
    if (weight && weight.dtype == DType::f32) {
      return out == DType::f32 ? f(NormTypes<X, float, float>{}) : f(NormTypes<X, float, X>{});
    }
  }
  f(NormTypes<X, X, X>{});
}

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

}  // namespace
}  // namespace warpwright::ops
