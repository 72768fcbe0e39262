#include <fmt/format.h>

#include <algorithm>

#include "ops/heads.hpp"
#include "ops/rope/rope.hpp"

namespace warpwright::ops {
namespace {

// The parts of RopeForward and RopeBackward by their roles.
struct Arguments {
  std::string_view operation, from_name, to_name;
  const Tensor &from, &to, &positions, &cos, &sin, &wrong;
};

RopeProblem problem_of(const Arguments& a, RopeLayout layout, bool backward) {
  require(a.from.shape.rank() == 3 && a.from.shape[1] > 0 && a.from.shape[2] > 0, a.operation,
          fmt::format("{} must be (N, NH, HS) with NH and HS ≥ 1", a.from_name));
  const std::int64_t N = a.from.shape[0], NH = a.from.shape[1], HS = a.from.shape[2];
  const DType dtype = a.from.dtype;
  const bool in_place = require_map_of_heads(a.operation, a.from_name, a.from, a.to_name, a.to);
  require(a.cos.shape.rank() == 2 && a.cos.shape[1] > 0 && a.cos.shape[1] <= HS / 2, a.operation,
          "cos must be (P, R/2) with 2 ≤ R ≤ HS");
  require_tensor(a.operation, "cos", a.cos, accumulation_dtype(dtype), a.cos.shape);
  require_tensor(a.operation, "sin", a.sin, accumulation_dtype(dtype), a.cos.shape);
  require_tensor(a.operation, "positions", a.positions, DType::i32, {N});
  require_tensor(a.operation, "wrong", a.wrong, DType::i64, {1});
  return {
      .N = N,
      .NH = NH,
      .HS = HS,
      .R = 2 * a.cos.shape[1],
      .P = a.cos.shape[0],
      .dtype = dtype,
      .layout = layout,
      .backward = backward,
      .in_place = in_place,
      .aligned = begin_at_packs(a.cos, a.sin) && heads_begin_at_packs(a.from) && heads_begin_at_packs(a.to)};
}

}  // namespace

RopeProblem RopeForward::problem() const {
  return problem_of({"rope.forward", "x", "out", x, out, positions, cos, sin, wrong}, layout, false);
}

RopeProblem RopeBackward::problem() const {
  return problem_of({"rope.backward", "dout", "dx", dout, dx, positions, cos, sin, wrong}, layout, true);
}

std::string RopeProblem::describe() const {
  return fmt::format("N={} NH={} HS={} R={} P={} {} {}{}{}", N, NH, HS, R, P, name_of(dtype), name_of(layout),
                     in_place ? " in place" : "", unaligned_note(aligned));
}
double RopeProblem::flops() const {
  return 3.0 * static_cast<double>(N * NH) * static_cast<double>(R);
}
double RopeProblem::bytes() const {
  const auto moved = static_cast<double>(N * NH) * static_cast<double>(in_place ? R : HS);
  const auto angles = static_cast<double>(std::min(N, P)) * static_cast<double>(R);  // R/2 cos and R/2 sin
  return 2 * moved * static_cast<double>(size_of(dtype)) +
         angles * static_cast<double>(size_of(accumulation_dtype(dtype))) + 4.0 * static_cast<double>(N);
}

}  // namespace warpwright::ops
