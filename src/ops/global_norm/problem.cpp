#include <fmt/format.h>

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kSquares = "global_norm.squares", kNorm = "global_norm.norm";

}  // namespace

std::int64_t squares_blocks(const std::vector<Tensor>& tensors) {
  std::int64_t blocks = 0;
  for (const Tensor& t : tensors) blocks += (t.elements() + kSquaresBlock - 1) / kSquaresBlock;
  return blocks;
}

SquaresProblem Squares::problem() const {
  const DType dtype = gradients.empty() ? DType::f32 : gradients.front().dtype;
  require(dtype == DType::f32 || dtype == DType::f64, kSquares, "gradients must be fp32 or fp64");
  SquaresProblem made{.tensors = static_cast<std::int64_t>(gradients.size()), .dtype = dtype};
  for (const Tensor& gradient : gradients) {
    require_tensor(kSquares, "gradient", gradient, dtype, gradient.shape);
    made.elements += gradient.elements();
  }
  require_tensor(kSquares, "sums", sums, DType::f64, {squares_blocks(gradients)});
  return made;
}

std::string SquaresProblem::describe() const {
  return fmt::format("elements={} tensors={} {}", elements, tensors, name_of(dtype));
}
double SquaresProblem::flops() const {
  return 2.0 * static_cast<double>(elements);
}
double SquaresProblem::bytes() const {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

GlobalNormProblem GlobalNorm::problem() const {
  const DType dtype = norm.dtype;
  require(dtype == DType::f32 || dtype == DType::f64, kNorm, "norm must be fp32 or fp64");
  require_tensor(kNorm, "norm", norm, dtype, {1});
  if (scale) require_tensor(kNorm, "scale", scale, dtype, {1});
  require_tensor(kNorm, "sums", sums, DType::f64, {sums.elements()});
  require(max_norm >= 0, kNorm, "max_norm is negative");  // NaN too
  return {.blocks = sums.elements(), .dtype = dtype};
}

std::string GlobalNormProblem::describe() const {
  return fmt::format("blocks={} {}", blocks, name_of(dtype));
}
double GlobalNormProblem::flops() const {
  return static_cast<double>(blocks);
}
double GlobalNormProblem::bytes() const {
  return static_cast<double>(blocks) * sizeof(double);
}

}  // namespace warpwright::ops
