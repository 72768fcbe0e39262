#include <fmt/format.h>

#include "ops/gate/gate.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "gate.forward";
constexpr std::string_view kBackwardName = "gate.backward";

// The shape (N, F) of one half of gate_up.
Shape half_of(std::string_view operation, const Tensor& gate_up) {
  require(gate_up.shape.rank() == 2 && gate_up.shape[1] % 2 == 0, operation,
          "gate_up must have the shape (N, 2F)");
  return {gate_up.shape[0], gate_up.shape[1] / 2};
}

}  // namespace

GateProblem GateForward::problem() const {
  const Shape half = half_of(kForwardName, gate_up);
  require_tensor(kForwardName, "gate_up", gate_up, gate_up.dtype, gate_up.shape);
  require_tensor(kForwardName, "out", out, gate_up.dtype, half);
  return {.rows = half[0],
          .columns = half[1],
          .dtype = gate_up.dtype,
          .activation = activation,
          .backward = false,
          .out_again = false,
          .aligned = begin_at_packs(gate_up, out)};
}

GateProblem GateBackward::problem() const {
  const Shape half = half_of(kBackwardName, gate_up);
  require_tensor(kBackwardName, "gate_up", gate_up, gate_up.dtype, gate_up.shape);
  require_tensor(kBackwardName, "dout", dout, gate_up.dtype, half);
  require_tensor(kBackwardName, "dgate_up", dgate_up, gate_up.dtype, gate_up.shape);
  if (out) require_tensor(kBackwardName, "out", out, gate_up.dtype, half);
  return {.rows = half[0],
          .columns = half[1],
          .dtype = gate_up.dtype,
          .activation = activation,
          .backward = true,
          .out_again = static_cast<bool>(out),
          .aligned = begin_at_packs(dout, gate_up, dgate_up) && begin_at_packs(out)};
}

std::string GateProblem::describe() const {
  return fmt::format("rows={} columns={} {} {}{}{}", rows, columns, name_of(dtype), name_of(activation),
                     out_again ? " +out" : "", unaligned_note(aligned));
}
double GateProblem::flops() const {
  return (backward ? 40.0 : 26.0) * static_cast<double>(rows) * static_cast<double>(columns);
}
double GateProblem::bytes() const {
  return (out_again  ? 6.0
          : backward ? 5.0
                     : 3.0) *
         static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
