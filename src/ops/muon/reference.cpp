// The oracle: fp64 throughout, in the order of the formulas. Stochastic rounding, and a master, get the fp32
// number nearest to the new parameter.
#include <cmath>

#include "ops/adamw/oracle_weights.hpp"
#include "ops/adamw/rounding.hpp"
#include "ops/element.hpp"
#include "ops/muon/muon.hpp"

namespace warpwright::ops {
namespace {

void momentum_reference(const Context&, const MuonMomentum& args) {
  const double scale = load_scalars(args.scalars).gradient_scale;
  if (!std::isfinite(scale)) return;
  const Elements gradient(args.gradient), m(args.m);
  for (std::int64_t i = 0; i < args.m.elements(); ++i) {
    const double g = scale * gradient[i], new_m = args.momentum * m[i] + (1 - args.momentum) * g;
    m.set(i, new_m);
    gradient.set(i, (1 - args.momentum) * g + args.momentum * new_m);
  }
}

void scale_reference(const Context&, const MuonScale& args) {
  const Elements x(args.x), norm(args.norm), out(args.out);
  const double factor = norm ? args.factor / (norm[0] + kMuonEps) : args.factor;
  for (std::int64_t i = 0; i < args.x.elements(); ++i) out.set(i, factor * x[i]);
}

void update_reference(const Context&, const MuonUpdate& args) {
  using namespace adamw_kernels;
  const AdamWScalars<double> s = load_scalars(args.scalars);
  if (!std::isfinite(s.gradient_scale)) return;
  const bool stochastic = args.parameter.dtype == DType::bf16 && !args.remainder;
  const Elements x(args.x);
  const OracleWeights weights(args.parameter, args.remainder);
  for (std::int64_t i = 0; i < args.parameter.elements(); ++i) {
    const double w = weights[i];
    const double new_w = w - s.learning_rate * (args.factor * x[i] + args.weight_decay * w);
    if (stochastic) {
      const auto random = random_block(args.random.as<std::int32_t>(), args.number, i / kRandomElements);
      weights.set(i, stochastically_rounded(static_cast<float>(new_w),
                                            random_half(random, static_cast<int>(i % kRandomElements))));
    } else {
      weights.set(i, new_w);
    }
  }
}

}  // namespace

WARPWRIGHT_KERNEL(MuonMomentum, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = momentum_reference};
WARPWRIGHT_KERNEL(MuonScale, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = scale_reference};
WARPWRIGHT_KERNEL(MuonUpdate, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = update_reference};

}  // namespace warpwright::ops
