// Lost columns are those whose x̂ cannot be recovered from a normalization's output, since (out −
// bias)/weight would consist of rounding errors. Rounding out causes an error of ½ε·(|x̂| + |bias/weight|) in
// x̂, where ε belongs to out's dtype. A column is lost if the second part can exceed an eighth of x̂'s
// deviation. Columns with weight = 0 are lost, too. docs/numerics.md derives the errors.
//
// x̂ of a lost column is never made up. The forward finds the lost columns and keeps the x of the first K of
// them, all on the device. The backward computes x̂ from these. A lost column without a place gets NaN in its
// dweight and in its dx. The other gradients stay correct, because sums over a row use dout·(out − bias) for
// g·x̂ if x̂ is not known.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/tensor.hpp"
#include "runtime/context.hpp"

namespace warpwright::ops {

// The tensors for lost columns. Without `columns`, lost columns are not tracked.
struct LostColumns {
  Tensor columns;  // (1 + K) int32: the number of lost columns, which may exceed K; then their indices,
                   // ascending, and −1 after the last
  Tensor x;        // (N, K) of x's dtype if K > 0; columns after the last lost one are not written

  // Always inlined, because files of an instruction set call it, too.
  [[gnu::always_inline]] explicit operator bool() const { return columns.data != nullptr; }
  [[gnu::always_inline]] std::int64_t places() const { return columns.data ? columns.shape[0] - 1 : 0; }  // K
  template <class F>
  void visit(F&& f, Access access) {
    f("lost_columns", columns, access);
    f("lost_x", x, access);
  }
};

namespace norm {

// The rule, for the host and for kernels. A is the type of the arithmetic: float, or double for fp64.
template <class A>
struct LostRule {
  A factor;        // 8 · ½ε of out's dtype
  A least_bias;    // least normal number of out's dtype: ε does not apply below it
  A least_weight;  // least normal number of A: the reciprocal of a smaller weight can overflow

  // Always inlined, because files of an instruction set call it, too.
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
        return {0, 0, 0};  // not reached: fp64 uses A = double
    }
  }
  // A NaN weight is not lost, because it makes NaN by itself.
  constexpr bool operator()(A weight, A bias) const {
    const A w = weight < 0 ? -weight : weight, b = bias < 0 ? -bias : bias;
    return w < factor * (b > least_bias ? b : least_bias) || w < least_weight;
  }
};

}  // namespace norm
}  // namespace warpwright::ops
