// Which columns' x̂ the output no longer tells: (out − bias)/weight would be rounding. Called on the host and
// in kernels.
#pragma once

#include "core/dtype.hpp"

namespace warpwright::ops::layernorm {

// A is what is computed in: float, or double beside fp64.
template <class A>
struct LostRule {
  A factor;        // 8 · ½ε of out's dtype
  A least_bias;    // the least normal number of out's dtype, below which ε means nothing
  A least_weight;  // that of A: the reciprocal of less can overflow

  // Inlined wherever it is called, files of an instruction set among them.
  [[gnu::always_inline]] static constexpr LostRule of(DType out) {
    constexpr A kFloat = static_cast<A>(0x1p-126);
    switch (out) {
      case DType::f16:
        return {static_cast<A>(0x1p-8), static_cast<A>(0x1p-14), kFloat};
      case DType::bf16:
        return {static_cast<A>(0x1p-5), kFloat, kFloat};
      case DType::f32:
        return {static_cast<A>(0x1p-21), kFloat, kFloat};
      default:
        if constexpr (sizeof(A) == sizeof(double)) return {0x1p-50, 0x1p-1022, 0x1p-1022};
        return {0, 0, 0};  // fp64 is computed in fp64
    }
  }
  // A weight that is NaN is not lost: it makes NaN by itself.
  constexpr bool operator()(A weight, A bias) const {
    const A w = weight < 0 ? -weight : weight, b = bias < 0 ? -bias : bias;
    return w < factor * (b > least_bias ? b : least_bias) || w < least_weight;
  }
};

}  // namespace warpwright::ops::layernorm
