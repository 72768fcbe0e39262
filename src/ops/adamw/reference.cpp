// The oracle: fp64 throughout, in the order of the formulas.
#include <cmath>

#include "ops/adamw/kernels.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::adamw_kernels {

void reference(const Context&, const AdamW& args) {
  const Elements schedule(args.schedule);
  const double lr = schedule[0], c1 = schedule[1], c2 = schedule[2], scale = schedule[3];
  if (!std::isfinite(scale)) return;
  for (const AdamWTensor& t : args.tensors) {
    const Elements parameter(t.parameter), gradient(t.gradient), m(t.m), v(t.v);
    const Elements master(t.master ? t.master : t.parameter);
    for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
      const double g = scale * gradient[i];
      const double new_m = args.beta1 * m[i] + (1 - args.beta1) * g;
      const double new_v = args.beta2 * v[i] + (1 - args.beta2) * g * g;
      const double w = master[i];
      const double step = (new_m / c1) / (std::sqrt(new_v / c2) + args.eps) + t.weight_decay * w;
      m.set(i, new_m);
      v.set(i, new_v);
      master.set(i, w - lr * step);
      if (t.master) parameter.set(i, master[i]);
    }
  }
}

}  // namespace warpwright::ops::adamw_kernels
