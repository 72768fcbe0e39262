// For callers whose batches are padded: from a 0/1 mask to packed rows, and back.
//   lengths  L_b = #{s : mask[b, s] ≥ 1/2}, cu_seqlens = the exclusive prefix sums of L and their total N,
//            indices[cu_seqlens[b] + i] = b·S + s for the i-th such s of row b, in order; −1 from N on
//   pack     out[r] = x[indices[r]]            for every r of out whose index is not negative; others stay
//   unpack   out[indices[r]] = x[r], 0 in every row that no r < N names
// Source: Y. Zhai et al., "ByteTransformer", arXiv:2210.03052, whose mask is (B, S, S): a sequence's length
// is the number of ones in the first row, mask.select(1, 0) here. Where the ones of a row come first, as it
// supposes, these are its definitions; a mask with holes or with the padding in front is taken as it stands.
//
// Rows of the mask may be strided (strides[1] is 1); everything else is contiguous. Rows are copied bit by
// bit.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct PaddingLengthsProblem {
  std::int64_t B = 0, S = 0;
  DType dtype = DType::f32;  // of the mask

  bool operator==(const PaddingLengthsProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct PaddingRowsProblem {
  std::int64_t rows = 0, padded = 0, C = 0;
  DType dtype = DType::f32;
  bool aligned = true;  // what is moved in packs begins at multiples of 16 bytes

  bool operator==(const PaddingRowsProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct PaddingLengths {
  using Problem = PaddingLengthsProblem;

  Tensor mask;        // (B, S) of any floating dtype, int32, int64 or uint8
  Tensor cu_seqlens;  // (B + 1) int32
  Tensor indices;     // (B·S) int32

  template <class F>
  void visit(F&& f) {
    f("mask", mask, Access::read);
    f("cu_seqlens", cu_seqlens, Access::write);
    f("indices", indices, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct PaddingPack {
  using Problem = PaddingRowsProblem;

  Tensor x;        // (B·S, C)
  Tensor indices;  // (R) int32, as lengths left them: R is B·S, or N
  Tensor out;      // (R, C)

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("indices", indices, Access::read);
    f("out", out, Access::update);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct PaddingUnpack {
  using Problem = PaddingRowsProblem;

  Tensor x;           // (R, C), R ≥ N
  Tensor cu_seqlens;  // (B + 1) int32
  Tensor indices;     // (at least R) int32
  Tensor out;         // (B, S, C)

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("cu_seqlens", cu_seqlens, Access::read);
    f("indices", indices, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

namespace padding {
inline constexpr DTypes kMaskDTypes{DType::f64, DType::f32, DType::bf16, DType::f16,
                                    DType::i32, DType::i64, DType::u8};
}

const Op<PaddingLengths>& padding_lengths_op();
const Op<PaddingPack>& padding_pack_op();
const Op<PaddingUnpack>& padding_unpack_op();

inline void padding_lengths(Context& context, const PaddingLengths& args) {
  call(context, padding_lengths_op(), args);
}
inline void padding_pack(Context& context, const PaddingPack& args) {
  call(context, padding_pack_op(), args);
}
inline void padding_unpack(Context& context, const PaddingUnpack& args) {
  call(context, padding_unpack_op(), args);
}

}  // namespace warpwright::ops
