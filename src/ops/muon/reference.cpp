// The oracle: fp64 throughout, in the order of the formulas. Stochastic rounding, or the master, gets the
// fp32 number nearest to the new parameter. An fp64 copy of a bf16 parameter begins at its master, and has no
// new remainder.
#include <cmath>

#include "ops/adamw/master.hpp"
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
  const bool rounds = args.parameter.dtype == DType::bf16;
  const Elements x(args.x), parameter(args.parameter);
  for (std::int64_t i = 0; i < args.parameter.elements(); ++i) {
    const double w = args.remainder ? master_of(bf16(static_cast<float>(parameter[i])).bits,
                                                args.remainder.as<std::int16_t>()[i])
                                    : parameter[i];
    const double new_w = w - s.learning_rate * (args.factor * x[i] + args.weight_decay * w);
    if (rounds && !args.remainder) {
      const auto random = random_block(args.random.as<std::int32_t>(), args.number, i / kRandomElements);
      parameter.set(i, stochastically_rounded(static_cast<float>(new_w),
                                              random_half(random, static_cast<int>(i % kRandomElements))));
    } else {
      parameter.set(i, new_w);
      if (!rounds) continue;
      const auto master = static_cast<float>(new_w);
      args.parameter.as<bf16>()[i] = bf16(master);
      args.remainder.as<std::int16_t>()[i] = remainder_of(master, bf16(master).bits);
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
