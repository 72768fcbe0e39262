// The oracle, in fp64 throughout.
#include "ops/element.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright::ops {
namespace {

void run(const Context&, const GradientSum& args) {
  for (std::size_t t = 0; t < args.sums.size(); ++t) {
    const Elements sum(args.sums[t]), first(args.firsts[t]), addend(args.addends[t]);
    for (std::int64_t i = 0; i < args.sums[t].elements(); ++i) sum.set(i, first[i] + addend[i]);
  }
}

}  // namespace

WARPWRIGHT_KERNEL(GradientSum, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = run};

}  // namespace warpwright::ops
