// The oracle, in fp64 throughout.
#include "ops/element.hpp"
#include "ops/residual/residual.hpp"

namespace warpwright::ops {
namespace {

void forward(const Context&, const ResidualForward& args) {
  const Elements a(args.a), b(args.b), out(args.out);
  for (std::int64_t i = 0; i < args.out.elements(); ++i) out.set(i, a[i] + b[i]);
}

void backward(const Context&, const ResidualBackward& args) {
  const Elements dout(args.dout), da(args.da), db(args.db);
  for (std::int64_t i = 0; i < args.dout.elements(); ++i) {
    da.add(i, dout[i]);
    db.add(i, dout[i]);
  }
}

}  // namespace

WARPWRIGHT_KERNEL(ResidualForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = forward};
WARPWRIGHT_KERNEL(ResidualBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = backward};

}  // namespace warpwright::ops
