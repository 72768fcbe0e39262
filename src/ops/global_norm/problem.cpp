#include "ops/global_norm/global_norm.hpp"

#include <fmt/format.h>

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "global_norm";

}  // namespace

GlobalNormProblem GlobalNorm::problem() const {
  const DType dtype = norm.dtype;
  require(dtype == DType::f32 || dtype == DType::f64, kName, "norm must be fp32 or fp64");
  require_tensor(kName, "norm", norm, dtype, {1});
  if (scale) require_tensor(kName, "scale", scale, dtype, {1});
  require(max_norm >= 0, kName, "max_norm is negative");  // NaN too
  GlobalNormProblem made{.tensors = static_cast<std::int64_t>(gradients.size()), .dtype = dtype};
  for (const Tensor& gradient : gradients) {
    require_tensor(kName, "gradient", gradient, dtype, gradient.shape);
    made.elements += gradient.elements();
  }
  return made;
}

std::string GlobalNormProblem::describe() const {
  return fmt::format("elements={} tensors={} {}", elements, tensors, name_of(dtype));
}
double GlobalNormProblem::flops() const {
  return 2.0 * static_cast<double>(elements);
}
double GlobalNormProblem::bytes() const {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
