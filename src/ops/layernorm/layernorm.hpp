// Layer normalization over the last axis.
//   forward   mean = Σx/C, var = Σ(x − mean)²/C, rstd = 1/√(var + eps), out = (x − mean)·rstd·weight + bias
//   backward  x̂ = (x − mean)·rstd, g = dout·weight,
//             dx (= or +=) dsum + rstd·(g − Σg/C − x̂·Σ(g·x̂)/C), dweight (= or +=) Σ_rows dout·x̂,
//             dbias likewise Σ_rows dout
// Source: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", arXiv:1607.06450.
//
// Without weight it is 1, without bias 0; a bias comes with a weight. Zero rows are fine; C ≥ 1; contiguous
// rows, any alignment.
//
// dtypes. x and dx have one (fp64, fp32, fp16, bf16), weight and bias the same or fp32, out and dout that of
// x or that of the parameters. Statistics and what is computed are fp32 beside all of them but fp64, where
// they are fp64; statistics about a number near the mean. dweight and dbias are of the statistics' dtype or
// of the parameters'.
//
// Backward from the output ("memory efficient"): with `out` in place of x, x̂ = (out − bias)/weight, and
// neither x nor mean has to be kept. Rounding of out leaves an error of ½ε·(|x̂| + |bias/weight|) in x̂, ε that
// of out's dtype. A column where the second part can pass an eighth of x̂'s deviation, weight = 0 among them,
// is called lost (lost.hpp has the exact rule, docs/numerics.md the errors). x̂ of a lost column is never made
// up. The forward, given kept_columns, writes their number and the first K of them there, all on the device,
// and x of these K columns to `kept`, from which the backward takes x̂. A lost column without a place there
// gets NaN in its dweight and in its dx. The other gradients stay right, as sums over a row take g·x̂ =
// dout·(out − bias) where x̂ is not known.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

// A problem of layer normalization or of ops/rmsnorm. The dtypes of the other tensors follow from that of x
// and from flags.
struct NormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;  // of x
  bool centered = true;      // layer normalization; false: by the root mean square
  bool weight = true, bias = true;
  bool fp32_parameters = false;    // with x of 16 bits
  bool out_as_parameters = false;  // out and dout are fp32 as well
  bool aligned = true;             // x, out, their gradients, weight and bias begin at multiples of 16 bytes

  bool operator==(const NormProblem&) const = default;
  DType parameters_dtype() const { return fp32_parameters ? DType::f32 : dtype; }
  DType out_dtype() const { return out_as_parameters ? DType::f32 : dtype; }
  std::string describe() const;
};

struct NormForwardProblem : NormProblem {
  bool statistics = false;
  std::int64_t kept = -1;  // K; −1 without kept_columns

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

struct LayerNormForward {
  using Problem = NormForwardProblem;
  Tensor x;       // (N, C)
  Tensor weight;  // (C), optional
  Tensor bias;    // (C), optional
  Tensor out;     // (N, C); may be x
  Tensor mean;    // (N) fp32 (fp64 beside fp64), optional
  Tensor rstd;    // (N) likewise, optional
  double eps = 1e-5;
  Tensor kept_columns{};  // (1 + K) int32, optional: the number of lost columns, which can be more than K,
                          // and their indices in ascending order, −1 behind the last
  Tensor kept{};  // (N, K) of x's dtype, where K > 0; columns behind the last are not written. out is not x

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("out", out, Access::write);
    f("mean", mean, Access::write);
    f("rstd", rstd, Access::write);
    f("kept_columns", kept_columns, Access::write);
    f("kept", kept, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct LayerNormBackward {
  using Problem = NormBackwardProblem;
  Tensor dout;     // (N, C)
  Tensor x;        // (N, C); absent where out is given
  Tensor weight;   // (C), as in the forward
  Tensor mean;     // (N) as the forward left it; beside out only where kept is given
  Tensor rstd;     // (N)
  Tensor dx;       // (N, C), = or += by dx_store
  Tensor dweight;  // (C), = or += by dparameters_store; optional
  Tensor dbias;    // (C), likewise
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;
  Tensor dsum{};  // (N, C) of x's dtype, optional: the gradient that x has from elsewhere; may be dx. Not
                  // beside +=
  Tensor out{};   // (N, C): as the forward left it, in place of x; may be dx where dtypes agree
  Tensor bias{};  // (C), as in the forward; beside out only
  Tensor kept_columns{}, kept{};  // as the forward left them; beside out only, optional

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
    f("kept_columns", kept_columns, Access::read);
    f("kept", kept, Access::read);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<LayerNormForward>& layernorm_forward_op();
const Op<LayerNormBackward>& layernorm_backward_op();

inline void layernorm_forward(Context& context, const LayerNormForward& args) {
  call(context, layernorm_forward_op(), args);
}
inline void layernorm_backward(Context& context, const LayerNormBackward& args) {
  call(context, layernorm_backward_op(), args);
}

}  // namespace warpwright::ops
