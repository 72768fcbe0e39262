// The oracle, in fp64 throughout and in the order of the formulas. 1 + erf(t) is computed as erfc(−t), which
// is equal and does not cancel.
#include <cmath>
#include <numbers>

#include "ops/element.hpp"
#include "ops/gelu/gelu.hpp"

namespace warpwright::ops::gelu {
namespace {

constexpr double kCubic = 0.044715;
const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);

double value(Activation activation, double x) {
  if (activation == Activation::gelu_erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}

double derivative(Activation activation, double x) {
  if (activation == Activation::gelu_erf) {
    const double bell = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * bell;
  }
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
}

void forward_reference(const Context&, const GeluForward& args) {
  const Elements x(args.x), out(args.out);
  for (std::int64_t i = 0; i < args.x.elements(); ++i) out.set(i, value(args.activation, x[i]));
}

void backward_reference(const Context&, const GeluBackward& args) {
  const Elements dout(args.dout), x(args.x), dx(args.dx);
  for (std::int64_t i = 0; i < args.x.elements(); ++i) {
    dx.set(i, dout[i] * derivative(args.activation, x[i]));
  }
}

}  // namespace
}  // namespace warpwright::ops::gelu

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GeluForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = gelu::forward_reference};
WARPWRIGHT_KERNEL(GeluBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = gelu::backward_reference};

}  // namespace warpwright::ops
