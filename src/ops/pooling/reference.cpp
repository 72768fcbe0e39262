// The oracle, in fp64 throughout and in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/element.hpp"
#include "ops/pooling/kernels.hpp"

namespace warpwright::ops::pooling {
namespace {

double pooled(const Elements& x, Pooling kind, std::int64_t first, std::int64_t last, std::int64_t C,
              std::int64_t c) {
  if (first == last) return 0;
  if (kind == Pooling::cls) return x[first * C + c];
  double total = x[first * C + c];
  for (std::int64_t n = first + 1; n < last; ++n) {
    const double value = x[n * C + c];
    total = kind == Pooling::max ? std::max(total, value) : total + value;
  }
  const auto length = static_cast<double>(last - first);
  if (kind == Pooling::mean) return total / length;
  return kind == Pooling::mean_sqrt ? total / std::sqrt(length) : total;
}

void forward_reference(const Context&, const PoolingForward& args) {
  check_bounds(args);
  const std::int64_t S = args.out.shape[0], C = args.out.shape[1];
  const Elements x(args.x), out(args.out);
  const auto* bounds = args.cu_seqlens.as<std::int32_t>();
  std::vector<double> vector(static_cast<std::size_t>(C));
  for (std::int64_t s = 0; s < S; ++s) {
    const std::int64_t first = bounds ? bounds[s] : s, last = bounds ? bounds[s + 1] : s + 1;
    double square = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      const double value = pooled(x, args.kind, first, last, C, c);
      vector[static_cast<std::size_t>(c)] = value;
      square += value * value;
    }
    const double norm = args.normalize ? std::max(std::sqrt(square), static_cast<double>(kLeastNorm)) : 1;
    for (std::int64_t c = 0; c < C; ++c) out.set(s * C + c, vector[static_cast<std::size_t>(c)] / norm);
  }
}

}  // namespace
}  // namespace warpwright::ops::pooling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(PoolingForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = pooling::forward_reference};

}  // namespace warpwright::ops
