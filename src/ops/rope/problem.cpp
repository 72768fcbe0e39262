#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "ops/rope/rope.hpp"

namespace warpwright::ops {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostInRow = std::int64_t{1} << 30;

void require_heads(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                   const Shape& shape) {
  require(static_cast<bool>(tensor), operation, fmt::format("{} is missing", argument));
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require(tensor.strides[2] == 1, operation, fmt::format("{} must have stride 1 in its last axis", argument));
}

// True if no element of (N, NH, HS) has the address of another one.
bool is_distinct(const Tensor& t) {
  struct Axis {
    std::int64_t stride, size;
  };
  Axis inner{std::abs(t.strides[1]), t.shape[1]}, outer{std::abs(t.strides[0]), t.shape[0]};
  if (t.elements() == 0) return true;
  if (inner.stride > outer.stride) std::swap(inner, outer);
  const bool inner_fits = inner.size == 1 || inner.stride >= t.shape[2];
  const std::int64_t extent = (inner.size - 1) * inner.stride + t.shape[2];
  return inner_fits && (outer.size == 1 || outer.stride >= extent);
}

bool heads_begin_at_packs(const Tensor& t) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return begin_at_packs(t) && t.strides[0] * size % 16 == 0 && t.strides[1] * size % 16 == 0;
}

// The parts of RopeForward and RopeBackward by their roles.
struct Arguments {
  std::string_view operation, from_name, to_name;
  const Tensor &from, &to, &positions, &cos, &sin, &wrong;
};

RopeProblem problem_of(const Arguments& a, RopeLayout layout, bool backward) {
  require(a.from.shape.rank() == 3 && a.from.shape[1] > 0 && a.from.shape[2] > 0, a.operation,
          fmt::format("{} must be (N, NH, HS) with NH and HS ≥ 1", a.from_name));
  const std::int64_t N = a.from.shape[0], NH = a.from.shape[1], HS = a.from.shape[2];
  require(N <= kMostRows && NH <= kMostInRow / HS, a.operation,
          fmt::format("{} must have less than 2^31 rows, each of at most 2^30 elements", a.from_name));
  const DType dtype = a.from.dtype;
  require(is_floating(dtype), a.operation, fmt::format("{} must have a floating dtype", a.from_name));
  require_heads(a.operation, a.from_name, a.from, dtype, a.from.shape);
  require_heads(a.operation, a.to_name, a.to, dtype, a.from.shape);
  require(is_distinct(a.to), a.operation, fmt::format("{} must have a place for each element", a.to_name));
  require(a.cos.shape.rank() == 2 && a.cos.shape[1] > 0 && a.cos.shape[1] <= HS / 2, a.operation,
          "cos must be (P, R/2) with 2 ≤ R ≤ HS");
  require_tensor(a.operation, "cos", a.cos, accumulation_dtype(dtype), a.cos.shape);
  require_tensor(a.operation, "sin", a.sin, accumulation_dtype(dtype), a.cos.shape);
  require_tensor(a.operation, "positions", a.positions, DType::i32, {N});
  require_tensor(a.operation, "wrong", a.wrong, DType::i64, {1});
  const bool in_place = a.from.data == a.to.data;
  require(!in_place || N == 0 || a.from.strides == a.to.strides, a.operation,
          fmt::format("{} may be {} only with the same strides", a.to_name, a.from_name));
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
