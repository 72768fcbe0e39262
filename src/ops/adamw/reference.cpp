// The oracle: fp64 throughout, in the order of the formulas. Stochastic rounding, and a master, get the fp32
// number nearest to the new parameter.
#include <cmath>

#include "ops/adamw/kernels.hpp"
#include "ops/adamw/oracle_weights.hpp"
#include "ops/adamw/rounding.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

void reference(const Context&, const AdamW& args) {
  const AdamWScalars<double> s = load_scalars(args.scalars);
  if (!std::isfinite(s.gradient_scale)) return;
  for (const AdamWTensor& t : args.tensors) {
    const bool stochastic = t.parameter.dtype == DType::bf16 && !t.remainder;
    const Elements gradient(t.gradient), m(t.m), v(t.v);
    const OracleWeights weights(t.parameter, t.remainder);
    for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
      const double g = s.gradient_scale * gradient[i];
      const double new_m = args.beta1 * m[i] + (1 - args.beta1) * g;
      const double new_v = args.beta2 * v[i] + (1 - args.beta2) * g * g;
      const double w = weights[i];
      const double step = (new_m / s.bias_correction1) / (std::sqrt(new_v / s.bias_correction2) + args.eps) +
                          t.weight_decay * w;
      m.set(i, new_m);
      v.set(i, new_v);
      const double new_w = w - s.learning_rate * step;
      if (stochastic) {
        const auto random =
            random_block(args.random.as<std::int32_t>(), t.number, (t.first + i) / kRandomElements);
        weights.set(i, stochastically_rounded(static_cast<float>(new_w),
                                              random_half(random, static_cast<int>(i % kRandomElements))));
      } else {
        weights.set(i, new_w);
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
