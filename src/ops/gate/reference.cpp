// The oracle, in fp64 throughout and in the order of the formulas.
#include <cmath>

#include "ops/activation_oracle.hpp"
#include "ops/element.hpp"
#include "ops/gate/gate.hpp"

namespace warpwright::ops::gate {
namespace {

double value(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::gelu_tanh:
      return oracle::activate(Activation::gelu_tanh, x);
    case GateActivation::gelu_erf:
      return oracle::activate(Activation::gelu_erf, x);
    default:
      return x / (1 + std::exp(-x));
  }
}

double derivative(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::gelu_tanh:
      return oracle::derivative(Activation::gelu_tanh, x);
    case GateActivation::gelu_erf:
      return oracle::derivative(Activation::gelu_erf, x);
    default: {  // σ'(x) = σ(x)·σ(−x)
      const double sigmoid = 1 / (1 + std::exp(-x)), opposite = 1 / (1 + std::exp(x));
      return sigmoid + x * sigmoid * opposite;
    }
  }
}

void forward_reference(const Context&, const GateForward& args) {
  const Elements gate_up(args.gate_up), out(args.out);
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t gate = row * 2 * columns + column, up = gate + columns;
      out.set(row * columns + column, value(args.activation, gate_up[gate]) * gate_up[up]);
    }
  }
}

void backward_reference(const Context&, const GateBackward& args) {
  const Elements dout(args.dout), gate_up(args.gate_up), dgate_up(args.dgate_up), out(args.out);
  const std::int64_t rows = args.dout.shape[0], columns = args.dout.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t gate = row * 2 * columns + column, up = gate + columns;
      const double d = dout[row * columns + column], g = gate_up[gate], u = gate_up[up];
      dgate_up.set(gate, d * u * derivative(args.activation, g));
      dgate_up.set(up, d * value(args.activation, g));
      if (args.out) out.set(row * columns + column, value(args.activation, g) * u);
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::gate

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GateForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = gate::forward_reference};
WARPWRIGHT_KERNEL(GateBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = gate::backward_reference};

}  // namespace warpwright::ops
