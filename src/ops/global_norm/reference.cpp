// The oracle: fp64 throughout, element after element. The squares are of g / largest, so that fp64 gradients
// do not overflow, either.
#include <cmath>
#include <limits>

#include "ops/element.hpp"
#include "ops/global_norm/kernels.hpp"

namespace warpwright::ops::global_norm_kernels {
namespace {

void write(const GlobalNorm& args, double norm) {
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

}  // namespace

void finish(const GlobalNorm& args, double sum_of_squares) {
  write(args, std::sqrt(sum_of_squares));
}

std::size_t partials_bytes(const GlobalNormProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(p.elements / kBlock + p.tensors) * sizeof(double);
}

namespace {

void reference(const Context&, const GlobalNorm& args) {
  double largest = 0;
  for (const Tensor& gradient : args.gradients) {
    const Elements g(gradient);
    for (std::int64_t i = 0; i < gradient.elements(); ++i) {
      if (std::isnan(g[i])) return write(args, g[i]);
      largest = std::max(largest, std::abs(g[i]));
    }
  }
  if (largest == 0 || std::isinf(largest)) return write(args, largest);
  double sum = 0;
  for (const Tensor& gradient : args.gradients) {
    const Elements g(gradient);
    for (std::int64_t i = 0; i < gradient.elements(); ++i) sum += (g[i] / largest) * (g[i] / largest);
  }
  write(args, largest * std::sqrt(sum));
}

}  // namespace
}  // namespace warpwright::ops::global_norm_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GlobalNorm, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = global_norm_kernels::reference};

}  // namespace warpwright::ops
