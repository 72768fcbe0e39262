// The oracle: fp64 throughout, element after element.
#include <cmath>
#include <limits>

#include "ops/element.hpp"
#include "ops/global_norm/kernels.hpp"

namespace warpwright::ops::global_norm_kernels {

void finish(const GlobalNorm& args, double sum_of_squares) {
  const double norm = std::sqrt(sum_of_squares);
  const Elements out(args.norm), scale(args.scale);
  out.set(0, norm);
  if (!scale) return;
  const double rounded = out[0], limit = args.max_norm;
  if (!std::isfinite(rounded) || (args.keep_nan && std::isnan(scale[0]))) {
    scale.set(0, std::numeric_limits<double>::quiet_NaN());
  } else {
    scale.set(0, limit > 0 && norm > limit ? limit / norm : 1);
  }
}

namespace {

void reference_squares(const Context&, const Squares& args) {
  const Elements sums(args.sums);
  std::int64_t block = 0;
  for (const Tensor& gradient : args.gradients) {
    const Elements g(gradient);
    for (std::int64_t begin = 0; begin < gradient.elements(); begin += kSquaresBlock) {
      const std::int64_t end = std::min(gradient.elements(), begin + kSquaresBlock);
      double sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum += g[i] * g[i];
      sums.set(block++, sum);
    }
  }
}

void reference_norm(const Context&, const GlobalNorm& args) {
  const Elements sums(args.sums);
  double sum = 0;
  for (std::int64_t block = 0; block < args.sums.elements(); ++block) sum += sums[block];
  finish(args, sum);
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Squares, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = global_norm_kernels::reference_squares};

WARPWRIGHT_KERNEL(GlobalNorm, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = global_norm_kernels::reference_norm};

}  // namespace warpwright::ops
