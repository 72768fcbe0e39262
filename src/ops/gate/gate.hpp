// The gated activation of an MLP, as in Llama. One product computes gate and up; a row of gate_up is
// [gate | up].
//   forward   out = act(gate) · up
//   backward  dgate = dout · up · act'(gate)   (=)
//             dup = dout · act(gate)           (=)
//             out = act(gate) · up             (=), if it is asked for: the forward's bits again
// gate_up and dgate_up are (N, 2F); out and dout are (N, F). All have one dtype and are contiguous. dgate_up
// may be gate_up, and the backward's out may be dout; no other arguments may overlap. Throws Error if an
// argument does not fit.
//
// Source: N. Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202. SwiGLU has silu; GeGLU has GELU.
#pragma once

#include <type_traits>

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

// silu: x·σ(x) with σ(x) = 1/(1 + e^−x). Source: S. Elfwing, E. Uchibe, K. Doya, "Sigmoid-Weighted Linear
// Units for Neural Network Function Approximation in Reinforcement Learning", arXiv:1702.03118.
// gelu_tanh, gelu_erf: as in ops/activation.hpp.
// The type is not Activation because no epilogue of a product computes silu.
enum class GateActivation : std::uint8_t { silu, gelu_tanh, gelu_erf };
inline constexpr float kSiluBound = 110;  // silu'(−110) is 0 and silu'(110) is 1 in fp32
inline constexpr GateActivation kGateActivations[] = {GateActivation::silu, GateActivation::gelu_tanh,
                                                      GateActivation::gelu_erf};

constexpr std::string_view name_of(GateActivation activation) {
  switch (activation) {
    case GateActivation::gelu_tanh:
      return "gelu_tanh";
    case GateActivation::gelu_erf:
      return "gelu_erf";
    default:
      return "silu";
  }
}

// Calls f(tag), where decltype(tag)::value is the activation.
template <class F>
void visit_activation(GateActivation activation, const F& f) {
  switch (activation) {
    case GateActivation::silu:
      return f(std::integral_constant<GateActivation, GateActivation::silu>{});
    case GateActivation::gelu_tanh:
      return f(std::integral_constant<GateActivation, GateActivation::gelu_tanh>{});
    case GateActivation::gelu_erf:
      return f(std::integral_constant<GateActivation, GateActivation::gelu_erf>{});
  }
}

struct GateProblem {
  std::int64_t rows = 0;     // N
  std::int64_t columns = 0;  // F
  DType dtype = DType::f32;
  GateActivation activation = GateActivation::silu;
  bool backward = false, out_again = false;
  bool aligned = true;  // every tensor begins at a multiple of 16 bytes

  bool operator==(const GateProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GateForward {
  using Problem = GateProblem;

  Tensor gate_up;  // (N, 2F)
  Tensor out;      // (N, F)
  GateActivation activation = GateActivation::silu;

  template <class F>
  void visit(F&& f) {
    f("gate_up", gate_up, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct GateBackward {
  using Problem = GateProblem;

  Tensor dout;      // (N, F)
  Tensor gate_up;   // (N, 2F)
  Tensor dgate_up;  // (N, 2F); may be gate_up
  Tensor out = {};  // (N, F), optional; may be dout
  GateActivation activation = GateActivation::silu;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("gate_up", gate_up, Access::read);
    f("dgate_up", dgate_up, Access::write);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<GateForward>& gate_forward_op();
const Op<GateBackward>& gate_backward_op();

inline void gate_forward(Context& context, const GateForward& args) {
  call(context, gate_forward_op(), args);
}
inline void gate_backward(Context& context, const GateBackward& args) {
  call(context, gate_backward_op(), args);
}

}  // namespace warpwright::ops
