// Lost columns: those whose x̂ the output of a normalization does not tell, since (out − bias)/weight would be
// rounding. Rounding of out leaves an error of ½ε·(|x̂| + |bias/weight|) in x̂, ε that of out's dtype. A column
// is lost where the second part can pass an eighth of x̂'s deviation, weight = 0 among them (docs/numerics.md
// has the errors).
//
// x̂ of a lost column is never made up. The forward finds the lost columns and keeps the x of the first K of
// them, all on the device, and the backward takes x̂ from there. A lost column without a place gets NaN in its
// dweight and in its dx. The other gradients stay right, as sums over a row take g·x̂ = dout·(out − bias)
// where x̂ is not known.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/tensor.hpp"
#include "runtime/context.hpp"

namespace warpwright::ops {

// Absent if columns is: then none is looked for.
struct LostColumns {
  Tensor columns;  // (1 + K) int32: the number of lost columns, which can be more than K, and their indices
                   // in ascending order, −1 after the last
  Tensor x;        // (N, K) of x's dtype, where K > 0; columns after the last are not written

  // Inlined wherever they are called, files of an instruction set among them.
  [[gnu::always_inline]] explicit operator bool() const { return columns.data != nullptr; }
  [[gnu::always_inline]] std::int64_t places() const { return columns.data ? columns.shape[0] - 1 : 0; }  // K
  template <class F>
  void visit(F&& f, Access access) {
    f("lost_columns", columns, access);
    f("lost_x", x, access);
  }
};

namespace norm {

// The rule, on the host and in kernels. A is what is computed in: float, or double with fp64.
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

}  // namespace norm
}  // namespace warpwright::ops
