// Normalization over the last axis: layer normalization, or by the root mean square where not `centered`.
//   forward   y = x, or x + x_bias + residual where residual is given
//             mean = Σy/C (0 if not centered), var = Σ(y − mean)²/C, rstd = 1/√(var + eps)
//             out = (y − mean)·rstd·weight + bias
//   backward  x̂ = (y − mean)·rstd, g = dout·weight
//             dx (= or +=) dsum + rstd·(g − Σg/C − x̂·Σ(g·x̂)/C), without Σg/C if not centered
//             dweight (= or +=) Σ_rows dout·x̂, dbias (= or +=) Σ_rows dout
// Sources: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", arXiv:1607.06450; B. Zhang, R.
// Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; with residual and x_bias, as at the end
// of a linear layer: Y. Zhai et al., "ByteTransformer", IPDPS 2023, arXiv:2210.03052, section III-C.
//
// Without weight it is 1, without bias 0; a bias comes with a weight, and only if centered. Zero rows are
// fine; C ≥ 1; contiguous rows, any alignment.
//
// Residual. The additions are fp32 and rounded once. If `sum` is asked for, the statistics are those of the
// stored sum, and out has the bits of ops/residual and a normalization one after the other, in 4 passes of
// the tensor instead of 5, where both take their sums in the same order. Otherwise the statistics are those
// of the unrounded sum. The backward takes the sum as its x: its dx is the gradient of x and of residual, and
// the column sums of dx are that of x_bias.
//
// dtypes. x and dx have one (fp64, fp32, fp16, bf16), as have x_bias, residual and sum; weight and bias the
// same or, with 16 bits, fp32; out and dout that of x or, without residual, that of the parameters.
// Statistics and arithmetic are fp32, or fp64 with fp64; statistics about a number near the mean. dweight and
// dbias have the statistics' dtype or the parameters'.
//
// Backward from the output ("memory efficient"): with `out` in place of x, x̂ = (out − bias)/weight, and
// neither x nor mean has to be kept. lost_columns.hpp says for which columns out does not tell x̂, and how the
// forward keeps their x.
#pragma once

#include "ops/norm/lost_columns.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

// The dtypes of the other tensors follow from that of x and from flags.
struct NormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;  // of x
  bool centered = true;
  bool weight = true, bias = true;
  bool fp32_parameters = false;    // with x of 16 bits
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
  std::int64_t kept = -1;  // places for lost columns; −1: they are not looked for

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
  Tensor mean{};    // (N) fp32 (fp64 with fp64), optional; absent if not centered
  Tensor rstd{};    // (N) likewise, optional
  double eps = 1e-5;
  bool centered = true;
  LostColumns lost{};  // of x, or of sum; optional. Without residual, out is not x if there are places
  Tensor residual{};   // (N, C), optional; the four below come only with it, and lost only with sum
  Tensor x_bias{};     // (C), optional
  Tensor sum{};        // (N, C), optional; may be x or residual
  Tensor rows{};       // (1) int32, optional: only the first min(N, rows[0]) rows are asked for, and the
                       // others of what is written then hold anything, so that a captured launch serves
                       // any batch that fits

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
  Problem problem() const;  // throws Error where they do not fit together
};

struct NormBackward {
  using Problem = NormBackwardProblem;
  Tensor dout;       // (N, C)
  Tensor x{};        // (N, C); absent where out is given
  Tensor weight{};   // (C), as in the forward
  Tensor mean{};     // (N) as the forward left it; absent if not centered; with out only if columns are kept
  Tensor rstd;       // (N)
  Tensor dx;         // (N, C), = or += by dx_store
  Tensor dweight{};  // (C), = or += by dparameters_store; optional
  Tensor dbias{};    // (C), likewise
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;
  bool centered = true;
  Tensor dsum{};  // (N, C) of x's dtype, optional: the gradient that x has from elsewhere; may be dx. Not
                  // with +=
  Tensor out{};   // (N, C): as the forward left it, in place of x; may be dx where dtypes agree
  Tensor bias{};  // (C), as in the forward; with out only
  LostColumns lost{};  // as the forward left them; with out only, optional

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
  Problem problem() const;  // throws Error where they do not fit together
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
