// The oracle, in fp64 throughout and in the order of the formulas. The largest logit is subtracted from all
// exponents.
#include <cmath>
#include <limits>

#include "ops/classifier/classifier.hpp"
#include "ops/element.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

void reference(const Context&, const Classifier& args) {
  const std::int64_t N = args.logits.shape[0], Vp = args.logits.shape[1], V = args.V;
  const Elements logits(args.logits), weights(args.weights), losses(args.losses),
      probabilities(args.probabilities);
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t target = args.targets.as<std::int32_t>()[n];
    const double weight = weights ? weights[n] : 1 / static_cast<double>(N);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t v = 0; v < V; ++v) largest = std::max(largest, logits[n * Vp + v]);
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(logits[n * Vp + v] - largest);
    losses.set(n, target < 0 ? 0 : largest - logits[n * Vp + target] + std::log(sum));
    for (std::int64_t v = 0; v < Vp; ++v) {
      const double p = v < V ? std::exp(logits[n * Vp + v] - largest) / sum : 0;
      if (probabilities && v < V) probabilities.set(n * V + v, p);
      if (!args.gradient) continue;
      logits.set(n * Vp + v, target < 0 || v >= V ? 0 : weight * (p - (v == target ? 1 : 0)));
    }
  }
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = classifier_kernels::reference};

}  // namespace warpwright::ops
