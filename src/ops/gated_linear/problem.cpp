#include <fmt/format.h>

#include "ops/gated_linear/gated_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "gated_linear.forward";
constexpr std::string_view kDxName = "gated_linear.dx";

const Tensor& place_of_d(const GatedDx& args) {
  return args.out ? args.out : args.scratch;
}

}  // namespace

namespace gated_linear {

MatmulForward product_of(const GatedForward& a) {
  return {.x = a.x,
          .weight = a.weight,
          .bias = a.bias,
          .out = a.gate_up,
          .preact = {},
          .batch_invariant = a.batch_invariant,
          .packed = a.packed,
          .next_weight = a.next_weight};
}
GateForward gate_of(const GatedForward& a) {
  return {.gate_up = a.gate_up, .out = a.out, .activation = a.activation};
}
MatmulDx product_of(const GatedDx& a) {
  return {.dout = a.dout, .weight = a.weight, .preact = {}, .dx = place_of_d(a)};
}
GateBackward gate_of(const GatedDx& a) {
  return {.dout = place_of_d(a),
          .gate_up = a.gate_up,
          .dgate_up = a.gate_up,
          .out = a.out,
          .activation = a.activation};
}

}  // namespace gated_linear

GatedForwardProblem GatedForward::problem() const {
  require_dtype(kForwardName, "gate_up", gate_up, x.dtype);
  require_dtype(kForwardName, "out", out, x.dtype);
  return {.product = gated_linear::product_of(*this).problem(),
          .gate = gated_linear::gate_of(*this).problem(),
          .dtype = x.dtype};
}

GatedDxProblem GatedDx::problem() const {
  require(out || scratch, kDxName, "out or scratch must be given");
  require_dtype(kDxName, "gate_up", gate_up, dout.dtype);
  require_dtype(kDxName, out ? "out" : "scratch", place_of_d(*this), dout.dtype);
  return {.product = gated_linear::product_of(*this).problem(),
          .gate = gated_linear::gate_of(*this).problem(),
          .dtype = dout.dtype};
}

std::string GatedForwardProblem::describe() const {
  return fmt::format("{} {}", product.describe(), name_of(gate.activation));
}
double GatedForwardProblem::flops() const {
  return product.flops() + gate.flops();
}
// gate_up is written, not read again.
double GatedForwardProblem::bytes() const {
  return product.bytes() + gate.bytes() / 3;
}

std::string GatedDxProblem::describe() const {
  return fmt::format("{} {}{}", product.describe(), name_of(gate.activation), gate.out_again ? " +out" : "");
}
double GatedDxProblem::flops() const {
  return product.flops() + gate.flops();
}
// d is neither written nor read.
double GatedDxProblem::bytes() const {
  return product.bytes() + gate.bytes() -
         2.0 * static_cast<double>(gate.rows) * static_cast<double>(gate.columns) *
             static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
