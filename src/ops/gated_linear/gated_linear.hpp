// The gated half of an MLP, as in Llama: the product that makes gate and up, with the gate after it. A row of
// gate_up is [gate | up].
//   forward   gate_up = x·Wᵀ + bias, out = act(gate) · up
//   dx        d = dout·W is the gradient of out, where W belongs to the layer that reads out
//             dgate = d · up · act'(gate), dup = d · act(gate)   in the place of gate and up
//             out = act(gate) · up                               (=), if it is asked for: the forward's bits
// ops/matmul has the sums of a product, ops/gate the activations and their sources. `separate` runs those
// operations' kernels one after the other. A fused kernel does not read gate_up again, and does not store d.
//
// All tensors have one dtype. The rows of x and dout may be strided; the rest is contiguous. M, K, F, C ≥ 0.
// No two arguments may overlap. Throws Error if an argument does not fit.
#pragma once

#include "ops/gate/gate.hpp"
#include "ops/matmul/matmul.hpp"

namespace warpwright::ops {

struct GatedForwardProblem {
  MatmulForwardProblem product;  // N = 2F
  GateProblem gate;
  DType dtype = DType::f32;

  bool operator==(const GatedForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GatedDxProblem {
  MatmulDxProblem product;  // K = F
  GateProblem gate;
  DType dtype = DType::f32;

  bool operator==(const GatedDxProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GatedForward {
  using Problem = GatedForwardProblem;

  Tensor x;        // (M, K)
  Tensor weight;   // (2F, K)
  Tensor bias;     // (2F), optional
  Tensor gate_up;  // (M, 2F)
  Tensor out;      // (M, F)
  GateActivation activation = GateActivation::silu;
  bool batch_invariant = false;  // a row's bits do not depend on the number of rows
  Tensor packed{};               // (packed_bytes) u8, optional: replaces the weight's elements
  Tensor next_weight{};          // (any, any), optional: read soon after, so it may be brought to a cache

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f(packed ? "packed" : "weight", packed ? packed : weight, Access::read);
    f("bias", bias, Access::read);
    f("next_weight", next_weight, Access::read);
    f("gate_up", gate_up, Access::write);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct GatedDx {
  using Problem = GatedDxProblem;

  Tensor dout;          // (M, C)
  Tensor weight;        // (C, F)
  Tensor gate_up;       // (M, 2F); becomes its own gradient
  Tensor out = {};      // (M, F), optional
  Tensor scratch = {};  // (M, F), needed without out: a kernel may keep d in it, or else in out
  GateActivation activation = GateActivation::silu;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("weight", weight, Access::read);
    f("gate_up", gate_up, Access::update);
    f("out", out, Access::write);
    f("scratch", scratch, Access::scratch);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<GatedForward>& gated_forward_op();
const Op<GatedDx>& gated_dx_op();

inline void gated_forward(Context& context, const GatedForward& args) {
  call(context, gated_forward_op(), args);
}
inline void gated_dx(Context& context, const GatedDx& args) {
  call(context, gated_dx_op(), args);
}

namespace gated_linear {

// The two operations of a call.
MatmulForward product_of(const GatedForward& args);
GateForward gate_of(const GatedForward& args);
MatmulDx product_of(const GatedDx& args);
GateBackward gate_of(const GatedDx& args);

}  // namespace gated_linear
}  // namespace warpwright::ops
