// Converts between padded batches and packed rows, given a 0/1 mask.
//   lengths  L_b = #{s : mask[b, s] > 1/2}; cu_seqlens = the exclusive prefix sums of L and their total N;
//            indices[cu_seqlens[b] + i] = b·S + s for the i-th such s of row b, in order; −1 from N on
//   pairs    out[b, i, j] = 1 if mask[b, i, j] > 1/2, else 0: the bytes that attention reads
//   pack     out[r] = x[indices[r]] for every row r of out whose index is not negative; other rows are kept
//   unpack   out[indices[r]] = x[r] for r < N, and 0 in all other rows
// odd = the index b·S + s or (b·Lq + i)·Lk + j of the first value that is neither 0 nor 1, or −1 (mask.hpp).
// Source: Y. Zhai et al., "ByteTransformer", arXiv:2210.03052.
//
// ByteTransformer's mask is (B, S, S), and a sequence's length is the number of ones in its first row, which
// is mask.select(1, 0) here. It assumes that the ones of a row come first. For such masks, these definitions
// are the same. Here a mask may also have holes, or the padding in front.
//
// Rows of a mask and of the bytes may be strided (the last stride is 1). All other tensors are contiguous.
// Rows are copied bit by bit. Throws Error if a tensor does not fit.
#pragma once

#include "ops/op.hpp"
#include "ops/padding/mask.hpp"

namespace warpwright::ops {

struct PaddingLengthsProblem {
  std::int64_t B = 0, S = 0;
  DType dtype = DType::f32;  // of the mask

  bool operator==(const PaddingLengthsProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct PaddingPairsProblem {
  std::int64_t B = 0, Lq = 0, Lk = 0;
  DType dtype = DType::f32;  // of the mask

  bool operator==(const PaddingPairsProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct PaddingRowsProblem {
  std::int64_t rows = 0, padded = 0, C = 0;
  DType dtype = DType::f32;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

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
  Tensor odd;         // (1) int64

  template <class F>
  void visit(F&& f) {
    f("mask", mask, Access::read);
    f("cu_seqlens", cu_seqlens, Access::write);
    f("indices", indices, Access::write);
    f("odd", odd, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct PaddingPairs {
  using Problem = PaddingPairsProblem;

  Tensor mask;  // (B, Lq, Lk) of any floating dtype, int32, int64 or uint8
  Tensor out;   // (B, Lq, Lk) uint8
  Tensor odd;   // (1) int64

  template <class F>
  void visit(F&& f) {
    f("mask", mask, Access::read);
    f("out", out, Access::write);
    f("odd", odd, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct PaddingPack {
  using Problem = PaddingRowsProblem;

  Tensor x;        // (B·S, C)
  Tensor indices;  // (R) int32, from lengths; R is B·S or N
  Tensor out;      // (R, C)

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("indices", indices, Access::read);
    f("out", out, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
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
  Problem problem() const;  // throws Error if the tensors do not fit together
};

namespace padding {
inline constexpr DTypes kMaskDTypes{DType::f64, DType::f32, DType::bf16, DType::f16,
                                    DType::i32, DType::i64, DType::u8};
}

const Op<PaddingLengths>& padding_lengths_op();
const Op<PaddingPairs>& padding_pairs_op();
const Op<PaddingPack>& padding_pack_op();
const Op<PaddingUnpack>& padding_unpack_op();

inline void padding_lengths(Context& context, const PaddingLengths& args) {
  call(context, padding_lengths_op(), args);
}
inline void padding_pairs(Context& context, const PaddingPairs& args) {
  call(context, padding_pairs_op(), args);
}
inline void padding_pack(Context& context, const PaddingPack& args) {
  call(context, padding_pack_op(), args);
}
inline void padding_unpack(Context& context, const PaddingUnpack& args) {
  call(context, padding_unpack_op(), args);
}

}  // namespace warpwright::ops
