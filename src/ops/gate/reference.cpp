// The oracle, in fp64 throughout and in the order of the formulas. 1 + erf(t) is computed as erfc(−t), which
// is equal and does not cancel.
#include <cmath>
#include <numbers>

#include "ops/element.hpp"
#include "ops/gate/gate.hpp"

namespace warpwright::ops::gate {
namespace {

constexpr double kCubic = 0.044715;
const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);

double value(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
    case GateActivation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    default:
      return x / (1 + std::exp(-x));
  }
}

double derivative(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::gelu_tanh: {
      const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    }
    case GateActivation::gelu_erf: {
      const double bell = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * bell;
    }
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
