// Visits the dtypes that the CPU's vector kernels of ops/norm take. For files that are compiled for
// one instruction set.
#pragma once

#include "ops/cpu/isa.hpp"
#include "ops/cpu/norm.hpp"
#include "ops/norm/kernels.hpp"
#include "ops/norm/types.hpp"

namespace warpwright::ops {
namespace {

template <class F>
void visit_norm_types(DType x, const Tensor& weight, DType out, const F& f) {
  if (x == DType::f32) return visit_norm_types_of<float>(weight, out, f);
  x == DType::f16 ? visit_norm_types_of<f16>(weight, out, f) : visit_norm_types_of<bf16>(weight, out, f);
}

}  // namespace
}  // namespace warpwright::ops
