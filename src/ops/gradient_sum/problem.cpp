#include <fmt/format.h>

#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright::ops {

GradientSumProblem GradientSum::problem() const {
  constexpr std::string_view kName = "gradient_sum";
  require(sums.size() == firsts.size() && sums.size() == addends.size(), kName,
          "there must be one first term and one addend for each sum");
  GradientSumProblem made{.tensors = static_cast<std::int64_t>(sums.size())};
  if (!sums.empty()) made.dtype = sums.front().dtype;
  require(made.dtype == DType::f32 || made.dtype == DType::f64, kName, "gradients must be fp32 or fp64");
  for (std::size_t i = 0; i < sums.size(); ++i) {
    require_tensor(kName, "sum", sums[i], made.dtype, sums[i].shape);
    require_tensor(kName, "first", firsts[i], made.dtype, sums[i].shape);
    require_tensor(kName, "addend", addends[i], made.dtype, sums[i].shape);
    made.elements += sums[i].elements();
  }
  return made;
}

std::string GradientSumProblem::describe() const {
  return fmt::format("elements={} tensors={} {}", elements, tensors, name_of(dtype));
}
double GradientSumProblem::flops() const {
  return static_cast<double>(elements);
}
double GradientSumProblem::bytes() const {
  return 3.0 * static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
