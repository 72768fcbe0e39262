// The element-wise operations of Muon, which updates a matrix by its orthogonalized momentum. The products
// between them are ops/matmul's (train/muon.hpp).
//   momentum  g = scale · gradient,  m += (1 − μ)·(g − m),  gradient = m + (1 − μ)·(g − m), Nesterov's
//             direction
//   scale     out = factor · x, or factor / (norm + kMuonEps) · x
//   update    w −= learning_rate · (factor · x + weight_decay · w)
// Sources: K. Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024; J. Liu et al., "Muon
// is scalable for LLM training", arXiv:2502.16982.
//
// `scalars` are AdamW's (ops/adamw/scalars.hpp): the scale is their gradient_scale. If it is not finite,
// momentum and update change nothing. Variants in fp32 may flush subnormal numbers (below 1.2e-38) to 0.
//
// As in AdamW, a bf16 parameter has an fp32 master, kept as the parameter and a remainder of 16 bits: the
// update changes the master, and the parameter becomes the rounded master. It may go without, and is then
// stored with stochastic rounding: the random bits are a function of `random` (a seed and the step), the
// parameter's number and the element (ops/adamw/rounding.hpp).
//
// gradient, m, x, out, parameter and remainder have one shape, of any rank, and all tensors are contiguous.
// No two may overlap. Throws Error if one does not fit.
#pragma once

#include <cstdint>

#include "ops/adamw/scalars.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

inline constexpr double kMuonEps = 1e-7;

struct MuonProblem {
  std::int64_t elements = 0;
  DType dtype = DType::f32;        // of momentum's m, scale's out, update's parameter
  DType from = DType::f32;         // of scale's x
  std::int64_t element_bytes = 0;  // read and written for each element
  bool masters = true;             // false: update's bf16 parameters have none
  bool aligned = true;             // every tensor begins at a multiple of 16 bytes

  bool operator==(const MuonProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

// μ is fp64, as AdamW's β is.
struct MuonMomentum {
  using Problem = MuonProblem;
  Tensor gradient;  // fp32 (fp64 for fp64)
  Tensor m;         // of the same dtype
  Tensor scalars;   // (4) of the same dtype: AdamWScalars
  double momentum = 0.95;

  template <class F>
  void visit(F&& f) {
    f("gradient", gradient, Access::update);
    f("m", m, Access::update);
    f("scalars", scalars, Access::read);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

struct MuonScale {
  using Problem = MuonProblem;
  Tensor x;       // fp32 (fp64 for fp64)
  Tensor norm{};  // (1) of x's dtype, optional
  Tensor out;     // any floating dtype; for fp64 fp64
  double factor = 1;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("norm", norm, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

struct MuonUpdate {
  using Problem = MuonProblem;
  Tensor parameter;
  Tensor remainder;  // int16: of a bf16 parameter's master; optional
  Tensor x;          // of the parameter's dtype
  Tensor scalars;    // (4) fp32 (fp64 for fp64): AdamWScalars
  Tensor random;     // (3) int32: a seed's lower and upper half, the step; needed without a master
  double factor = 1, weight_decay = 0;
  std::uint32_t number = 0;  // the parameter's, of the random bits

  template <class F>
  void visit(F&& f) {
    f("parameter", parameter, Access::update);
    f("remainder", remainder, Access::update);
    f("x", x, Access::read);
    f("scalars", scalars, Access::read);
    f("random", random, Access::read);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<MuonMomentum>& muon_momentum_op();
const Op<MuonScale>& muon_scale_op();
const Op<MuonUpdate>& muon_update_op();

inline void muon_momentum(Context& context, const MuonMomentum& args) {
  call(context, muon_momentum_op(), args);
}
inline void muon_scale(Context& context, const MuonScale& args) {
  call(context, muon_scale_op(), args);
}
inline void muon_update(Context& context, const MuonUpdate& args) {
  call(context, muon_update_op(), args);
}

}  // namespace warpwright::ops
