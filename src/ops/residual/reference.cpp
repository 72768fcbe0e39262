// The oracle: fp64 throughout.
#include "ops/element.hpp"
#include "ops/residual/kernels.hpp"

namespace warpwright::ops::residual {

void forward_reference(const Context&, const ResidualForward& args) {
  const Elements a(args.a), b(args.b), out(args.out);
  for (std::int64_t i = 0; i < args.out.elements(); ++i) out.set(i, a[i] + b[i]);
}

void backward_reference(const Context&, const ResidualBackward& args) {
  const Elements dout(args.dout), da(args.da), db(args.db);
  for (std::int64_t i = 0; i < args.dout.elements(); ++i) {
    da.add(i, dout[i]);
    db.add(i, dout[i]);
  }
}

}  // namespace warpwright::ops::residual
