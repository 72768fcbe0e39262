#include <fmt/format.h>

#include "ops/gated_linear/gated_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kDxName = "gated_linear.dx";

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
MatmulDx product_of(const GatedDx& a, const Tensor& d) {
  return {.dout = a.dout, .weight = a.weight, .preact = {}, .dx = d};
}
GateBackward gate_of(const GatedDx& a, const Tensor& d) {
  return {.dout = d, .gate_up = a.gate_up, .dgate_up = a.gate_up, .out = a.out, .activation = a.activation};
}

}  // namespace gated_linear

GatedForwardProblem GatedForward::problem() const {
  return {.product = gated_linear::product_of(*this).problem(),
          .gate = gated_linear::gate_of(*this).problem(),
          .dtype = x.dtype};
}

// d's place is not known yet. The problems are those of a d that begins at a multiple of 16 bytes, as scratch
// does; out, if it is given, takes d.
GatedDxProblem GatedDx::problem() const {
  require(gate_up.shape.rank() == 2 && gate_up.shape[1] % 2 == 0, kDxName,
          "gate_up must have the shape (M, 2F)");
  static const std::uintptr_t kAligned = 4096;
  const Tensor scratch(reinterpret_cast<void*>(kAligned), gate_up.dtype,
                       {gate_up.shape[0], gate_up.shape[1] / 2}, gate_up.device);
  const Tensor& d = out ? out : scratch;
  return {.product = gated_linear::product_of(*this, d).problem(),
          .gate = gated_linear::gate_of(*this, d).problem(),
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
