// The oracle: fp64 throughout, in the order of the formulas. Stochastic rounding, or the master, gets the
// fp32 number nearest to the new parameter. An fp64 copy of a bf16 parameter begins at its master, and has no
// new remainder.
#include <cmath>

#include "ops/adamw/kernels.hpp"
#include "ops/adamw/master.hpp"
#include "ops/adamw/rounding.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

double weight_of(const AdamWTensor& t, double parameter, std::int64_t i) {
  if (!t.remainder) return parameter;
  return master_of(bf16(static_cast<float>(parameter)).bits, t.remainder.as<std::int16_t>()[i]);
}

void reference(const Context&, const AdamW& args) {
  const AdamWScalars<double> s = load_scalars(args.scalars);
  if (!std::isfinite(s.gradient_scale)) return;
  for (const AdamWTensor& t : args.tensors) {
    const bool rounds = t.parameter.dtype == DType::bf16;
    const Elements parameter(t.parameter), gradient(t.gradient), m(t.m), v(t.v);
    for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
      const double g = s.gradient_scale * gradient[i];
      const double new_m = args.beta1 * m[i] + (1 - args.beta1) * g;
      const double new_v = args.beta2 * v[i] + (1 - args.beta2) * g * g;
      const double w = weight_of(t, parameter[i], i);
      const double step = (new_m / s.bias_correction1) / (std::sqrt(new_v / s.bias_correction2) + args.eps) +
                          t.weight_decay * w;
      m.set(i, new_m);
      v.set(i, new_v);
      const double new_w = w - s.learning_rate * step;
      if (rounds && !t.remainder) {
        const auto random =
            random_block(args.random.as<std::int32_t>(), t.number, (t.first + i) / kRandomElements);
        parameter.set(i, stochastically_rounded(static_cast<float>(new_w),
                                                random_half(random, static_cast<int>(i % kRandomElements))));
      } else {
        parameter.set(i, new_w);
        if (!rounds) continue;
        const auto master = static_cast<float>(new_w);
        t.parameter.as<bf16>()[i] = bf16(master);
        t.remainder.as<std::int16_t>()[i] = remainder_of(master, bf16(master).bits);
      }
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AdamW, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = adamw_kernels::reference};

}  // namespace warpwright::ops
