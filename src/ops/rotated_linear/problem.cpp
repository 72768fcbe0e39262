#include <fmt/format.h>

#include "ops/rotated_linear/rotated_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "rotated_linear.forward";

}  // namespace

namespace rotated_linear {

MatmulForward product_of(const RotatedForward& a) {
  const Shape& heads = a.out.shape;
  return {.x = a.x,
          .weight = a.weight,
          .bias = a.bias,
          .out = a.out.view({heads[0], heads[1] * heads[2]}),
          .preact = {},
          .batch_invariant = a.batch_invariant,
          .packed = a.packed,
          .next_weight = a.next_weight};
}

RopeForward rope_of(const RotatedForward& a) {
  const Tensor heads = a.out.slice(1, 0, a.rotated);
  return {.x = heads,
          .positions = a.positions,
          .cos = a.cos,
          .sin = a.sin,
          .out = heads,
          .wrong = a.wrong,
          .layout = a.layout};
}

}  // namespace rotated_linear

RotatedForwardProblem RotatedForward::problem() const {
  require(out.shape.rank() == 3, kName, "out must be (M, H, HS)");
  require_dtype(kName, "out", out, x.dtype);
  require_contiguous(kName, "out", out);
  require(rotated > 0 && rotated <= out.shape[1], kName,
          fmt::format("{} of {} heads cannot be rotated", rotated, out.shape[1]));
  return {.product = rotated_linear::product_of(*this).problem(),
          .rope = rotated_linear::rope_of(*this).problem(),
          .dtype = x.dtype};
}

std::string RotatedForwardProblem::describe() const {
  return fmt::format("{} rotated NH={} HS={} R={} P={} {}{}", product.describe(), rope.NH, rope.HS, rope.R,
                     rope.P, name_of(rope.layout), unaligned_note(rope.aligned));
}
double RotatedForwardProblem::flops() const {
  return product.flops() + rope.flops();
}
// The heads are written once, and not read.
double RotatedForwardProblem::bytes() const {
  const double heads = static_cast<double>(rope.N * rope.NH) * static_cast<double>(rope.R);
  return product.bytes() + rope.bytes() - 2 * heads * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
