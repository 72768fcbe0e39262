#include "ops/gelu/gelu.hpp"

#include <fmt/format.h>

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "gelu.forward";
constexpr std::string_view kBackwardName = "gelu.backward";

}  // namespace

GeluProblem GeluForward::problem() const {
  require(is_gelu(activation), kForwardName, "activation must be gelu_tanh or gelu_erf");
  require_tensor(kForwardName, "x", x, x.dtype, x.shape);
  require_tensor(kForwardName, "out", out, x.dtype, x.shape);
  return {.elements = x.elements(),
          .dtype = x.dtype,
          .activation = activation,
          .backward = false,
          .aligned = begin_at_packs(x, out)};
}

GeluProblem GeluBackward::problem() const {
  require(is_gelu(activation), kBackwardName, "activation must be gelu_tanh or gelu_erf");
  require_tensor(kBackwardName, "x", x, x.dtype, x.shape);
  require_tensor(kBackwardName, "dout", dout, x.dtype, x.shape);
  require_tensor(kBackwardName, "dx", dx, x.dtype, x.shape);
  return {.elements = x.elements(),
          .dtype = x.dtype,
          .activation = activation,
          .backward = true,
          .aligned = begin_at_packs(dout, x, dx)};
}

std::string GeluProblem::describe() const {
  return fmt::format("elements={} {} {}{}", elements, name_of(dtype), name_of(activation),
                     unaligned_note(aligned));
}
double GeluProblem::flops() const {
  return (backward ? 35.0 : 25.0) * static_cast<double>(elements);
}
double GeluProblem::bytes() const {
  return (backward ? 3.0 : 2.0) * static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
