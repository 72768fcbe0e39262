// Reduces the rows of each packed sequence to one vector.
//   mean       out_s = Σx/L over the sequence's L rows      mean_sqrt  out_s = Σx/√L
//   cls        out_s = its first row                        max        the largest element of each column
//   normalize  divides out_s by max(‖out_s‖₂, 1e-12)
// Source: N. Reimers, I. Gurevych, "Sentence-BERT", arXiv:1908.10084, and the modules of that name. There is
// no backward.
//
// Sequence s owns rows [cu_seqlens[s], cu_seqlens[s+1]) of x. Without cu_seqlens, every row is a sequence. A
// sequence without rows gives zeros. Sums and norms are fp32 (fp64 for fp64 data). The order in which rows
// are added depends only on the sequence. All tensors are contiguous. Throws Error if a tensor does not fit.
//
// The offsets are the caller's responsibility. Every CPU variant checks them first and throws Error. On a
// GPU, wrong offsets give wrong results, but nothing outside the tensors is accessed.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

enum class Pooling : std::uint8_t { mean, cls, max, mean_sqrt };

constexpr std::string_view name_of(Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return "mean";
    case Pooling::cls:
      return "cls";
    case Pooling::max:
      return "max";
    default:
      return "mean_sqrt";
  }
}

struct PoolingProblem {
  std::int64_t N = 0, S = 0, C = 0;
  DType dtype = DType::f32, out = DType::f32;
  Pooling kind = Pooling::mean;
  bool normalize = false;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

  bool operator==(const PoolingProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct PoolingForward {
  using Problem = PoolingProblem;

  Tensor x;           // (N, C)
  Tensor cu_seqlens;  // (S + 1) int32, ascending from 0 to at most N; optional
  Tensor out;         // (S, C), of x's dtype or of the sums' dtype
  Pooling kind = Pooling::mean;
  bool normalize = false;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("cu_seqlens", cu_seqlens, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<PoolingForward>& pooling_forward_op();

inline void pooling_forward(Context& context, const PoolingForward& args) {
  call(context, pooling_forward_op(), args);
}

}  // namespace warpwright::ops
