#include "ops/residual/residual.hpp"

#include <fmt/format.h>

namespace warpwright::ops {

ResidualProblem ResidualForward::problem() const {
  constexpr std::string_view kName = "residual.forward";
  require_tensor(kName, "a", a, a.dtype, a.shape);
  require_tensor(kName, "b", b, a.dtype, a.shape);
  require_tensor(kName, "out", out, a.dtype, a.shape);
  return {
      .elements = a.elements(), .dtype = a.dtype, .backward = false, .aligned = begin_at_packs(a, b, out)};
}

ResidualProblem ResidualBackward::problem() const {
  constexpr std::string_view kName = "residual.backward";
  require_tensor(kName, "dout", dout, dout.dtype, dout.shape);
  require_tensor(kName, "da", da, dout.dtype, dout.shape);
  require_tensor(kName, "db", db, dout.dtype, dout.shape);
  return {.elements = dout.elements(),
          .dtype = dout.dtype,
          .backward = true,
          .aligned = begin_at_packs(dout, da, db)};
}

std::string ResidualProblem::describe() const {
  return fmt::format("elements={} {}{}", elements, name_of(dtype), unaligned_note(aligned));
}
double ResidualProblem::flops() const {
  return (backward ? 2.0 : 1.0) * static_cast<double>(elements);
}
double ResidualProblem::bytes() const {
  return (backward ? 5.0 : 3.0) * static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
