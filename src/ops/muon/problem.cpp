#include <fmt/format.h>

#include <cmath>

#include "ops/muon/muon.hpp"

namespace warpwright::ops {
namespace {

std::int64_t size(const Tensor& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype));
}

void require_accumulation(std::string_view name, std::string_view argument, DType dtype) {
  require(dtype == DType::f32 || dtype == DType::f64, name, fmt::format("{} must be fp32 or fp64", argument));
}

}  // namespace

MuonProblem MuonMomentum::problem() const {
  constexpr std::string_view kName = "muon.momentum";
  require_accumulation(kName, "m", m.dtype);
  require_tensor(kName, "m", m, m.dtype, m.shape);
  require_tensor(kName, "gradient", gradient, m.dtype, m.shape);
  require_tensor(kName, "scalars", scalars, m.dtype, {4});
  require(momentum >= 0 && momentum < 1, kName, "momentum is not in [0, 1)");
  return {.elements = m.elements(),
          .dtype = m.dtype,
          .from = m.dtype,
          .element_bytes = 4 * size(m),
          .masters = true,
          .aligned = begin_at_packs(gradient, m)};
}

MuonProblem MuonScale::problem() const {
  constexpr std::string_view kName = "muon.scale";
  require_accumulation(kName, "x", x.dtype);
  require_tensor(kName, "x", x, x.dtype, x.shape);
  require(accumulation_dtype(out.dtype) == x.dtype, kName, "x must be fp32, or fp64 for an out of fp64");
  require_tensor(kName, "out", out, out.dtype, x.shape);
  if (norm) require_tensor(kName, "norm", norm, x.dtype, {1});
  return {.elements = x.elements(),
          .dtype = out.dtype,
          .from = x.dtype,
          .element_bytes = size(x) + size(out),
          .masters = true,
          .aligned = begin_at_packs(x, out)};
}

MuonProblem MuonUpdate::problem() const {
  constexpr std::string_view kName = "muon.update";
  const DType dtype = parameter.dtype, accumulation = accumulation_dtype(dtype);
  const bool narrow = dtype == DType::bf16;
  require(is_floating(dtype) && dtype != DType::f16, kName, "parameter is not fp32, bf16 or fp64");
  require_tensor(kName, "parameter", parameter, dtype, parameter.shape);
  require_tensor(kName, "x", x, dtype, parameter.shape);
  require_tensor(kName, "scalars", scalars, accumulation, {4});
  // The oracle runs on an fp64 copy of a bf16 parameter, which keeps the remainder.
  require(!remainder || dtype != DType::f32, kName, "an fp32 parameter has a remainder");
  if (remainder) require_tensor(kName, "remainder", remainder, DType::i16, parameter.shape);
  const bool rounds_at_random = narrow && !remainder;
  if (rounds_at_random) require_tensor(kName, "random", random, DType::i32, {3});
  return {.elements = parameter.elements(),
          .dtype = dtype,
          .from = dtype,
          .element_bytes = size(x) + 2 * size(parameter) + (remainder ? 2 * size(remainder) : 0),
          .masters = !rounds_at_random,
          .aligned = begin_at_packs(parameter, remainder, x)};
}

std::string MuonProblem::describe() const {
  return fmt::format("elements={} {}{}{}{}", elements, name_of(dtype),
                     from == dtype ? "" : fmt::format(" of {}", name_of(from)),
                     masters ? "" : " without masters", unaligned_note(aligned));
}
double MuonProblem::flops() const {
  return 5.0 * static_cast<double>(elements);
}
double MuonProblem::bytes() const {
  return static_cast<double>(elements) * static_cast<double>(element_bytes);
}

}  // namespace warpwright::ops
