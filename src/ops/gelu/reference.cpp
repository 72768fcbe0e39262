// The oracle, in fp64 throughout.
#include "ops/activation_oracle.hpp"
#include "ops/element.hpp"
#include "ops/gelu/gelu.hpp"

namespace warpwright::ops::gelu {
namespace {

void forward_reference(const Context&, const GeluForward& args) {
  const Elements x(args.x), out(args.out);
  for (std::int64_t i = 0; i < args.x.elements(); ++i) out.set(i, oracle::activate(args.activation, x[i]));
}

void backward_reference(const Context&, const GeluBackward& args) {
  const Elements dout(args.dout), x(args.x), dx(args.dx);
  for (std::int64_t i = 0; i < args.x.elements(); ++i) {
    dx.set(i, dout[i] * oracle::derivative(args.activation, x[i]));
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
