// Normalization over the last axis: layer normalization, or RMS normalization if not `centered`.
//   forward   y = x, or x + x_bias + residual if residual is given
//             mean = Σy/C (0 if not centered), var = Σ(y − mean)²/C, rstd = 1/√(var + eps)
//             out = (y − mean)·rstd·weight + bias
//   backward  x̂ = (y − mean)·rstd, g = dout·weight
//             dx (= or +=) dsum + rstd·(g − Σg/C − x̂·Σ(g·x̂)/C), without Σg/C if not centered
//             dweight (= or +=) Σ_rows dout·x̂, dbias (= or +=) Σ_rows dout
// Sources: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", arXiv:1607.06450; B. Zhang, R.
// Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; with residual and x_bias, at the end of
// a linear layer: Y. Zhai et al., "ByteTransformer", IPDPS 2023, arXiv:2210.03052, section III-C.
//
// Shapes. A missing weight means 1, and a missing bias means 0. A bias requires a weight and `centered`. Zero
// rows are allowed; C ≥ 1. Tensors are contiguous, at any address. Throws Error if a tensor does not fit.
//
// Residual. The additions are fp32 and are rounded once. If `sum` is given, the statistics are those of the
// stored sum. out then has the bits of ops/residual followed by a normalization, if both add in the same
// order, in 4 passes over the tensor instead of 5. If `sum` is not given, the statistics are those of the
// unrounded sum. The backward takes the sum as its x. Its dx is then the gradient of x and of residual, and
// the column sums of dx are the gradient of x_bias.
//
// Dtypes. x, dx, x_bias, residual and sum have one dtype (fp64, fp32, fp16, bf16). weight and bias have the
// same dtype, or fp32 if x has 16 bits. out and dout have x's dtype or, without residual, the parameters'
// dtype. Statistics and arithmetic are fp32 (fp64 for fp64). The squares are summed about a number near the
// mean. dweight and dbias have the statistics' dtype or the parameters'.
//
// Backward from the output ("memory efficient"). If `out` is given instead of x, x̂ = (out − bias)/weight,
// and neither x nor mean need be kept. lost_columns.hpp defines the columns whose x̂ cannot be recovered from
// out, and how the forward keeps their x.
#pragma once

#include "ops/norm/lost_columns.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

// The dtypes of all tensors follow from that of x and from the flags.
struct NormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;  // of x
  bool centered = true;
  bool weight = true, bias = true;
  bool fp32_parameters = false;    // x has 16 bits, and weight and bias are fp32
  bool out_as_parameters = false;  // out and dout are fp32 as well
  bool aligned = true;             // rows and parameters begin at multiples of 16 bytes

  bool operator==(const NormProblem&) const = default;
  DType parameters_dtype() const { return fp32_parameters ? DType::f32 : dtype; }
  DType out_dtype() const { return out_as_parameters ? DType::f32 : dtype; }
  std::string describe() const;
};

struct NormForwardProblem : NormProblem {
  bool statistics = false;
  bool residual = false, x_bias = false, sum = false;
  std::int64_t kept = -1;  // places for lost columns; −1: lost columns are not tracked

  bool operator==(const NormForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct NormBackwardProblem : NormProblem {
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;
  bool dsum = false;
  bool from_out = false;
  std::int64_t kept = -1;
  DType dparameters_dtype = DType::f32;

  bool operator==(const NormBackwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct NormForward {
  using Problem = NormForwardProblem;
  Tensor x;         // (N, C)
  Tensor weight{};  // (C), optional
  Tensor bias{};    // (C), optional
  Tensor out;       // (N, C); may be x or residual, but not sum
  Tensor mean{};    // (N) fp32 (fp64 for fp64), optional; absent if not centered
  Tensor rstd{};    // (N) of the same dtype, optional
  double eps = 1e-5;
  bool centered = true;
  // Lost columns of x, or of sum; optional. With residual, they require sum. Without residual, out must not
  // be x if K > 0.
  LostColumns lost{};
  Tensor residual{};  // (N, C), optional; required by x_bias, sum and rows
  Tensor x_bias{};    // (C), optional
  Tensor sum{};       // (N, C), optional; may be x or residual
  // (1) int32, optional. Only the first min(N, rows[0]) rows are computed; the other rows of the outputs hold
  // arbitrary values. A captured launch thus serves any batch that fits.
  Tensor rows{};

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("residual", residual, Access::read);
    f("x_bias", x_bias, Access::read);
    f("rows", rows, Access::read);
    f("sum", sum, Access::write);
    f("out", out, Access::write);
    f("mean", mean, Access::write);
    f("rstd", rstd, Access::write);
    lost.visit(f, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct NormBackward {
  using Problem = NormBackwardProblem;
  Tensor dout;      // (N, C)
  Tensor x{};       // (N, C); absent if out is given
  Tensor weight{};  // (C), as in the forward
  // (N), from the forward; absent if not centered. With out, only needed if K > 0.
  Tensor mean{};
  Tensor rstd;       // (N)
  Tensor dx;         // (N, C), = or += by dx_store
  Tensor dweight{};  // (C), = or += by dparameters_store; optional
  Tensor dbias{};    // (C), likewise
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;
  bool centered = true;
  // (N, C) of x's dtype, optional: the gradient of x from other operations. May be dx. Not with Store::add.
  Tensor dsum{};
  // (N, C), from the forward, instead of x. May be dx if the dtypes agree.
  Tensor out{};
  Tensor bias{};       // (C), as in the forward; only with out
  LostColumns lost{};  // from the forward; only with out, optional

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("mean", mean, Access::read);
    f("rstd", rstd, Access::read);
    f("dx", dx, access_of(dx_store));
    f("dweight", dweight, access_of(dparameters_store));
    f("dbias", dbias, access_of(dparameters_store));
    f("dsum", dsum, Access::read);
    f("out", out, Access::read);
    f("bias", bias, Access::read);
    lost.visit(f, Access::read);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<NormForward>& norm_forward_op();
const Op<NormBackward>& norm_backward_op();

inline void norm_forward(Context& context, const NormForward& args) {
  call(context, norm_forward_op(), args);
}
inline void norm_backward(Context& context, const NormBackward& args) {
  call(context, norm_backward_op(), args);
}

}  // namespace warpwright::ops
