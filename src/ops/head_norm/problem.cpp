// Checks the arguments of QK norm and reduces them to a problem.
#include <fmt/format.h>

#include <algorithm>

#include "ops/head_norm/kernels.hpp"
#include "ops/heads.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "head_norm.forward", kBackwardName = "head_norm.backward";

// The arguments that forward and backward share, by their roles.
struct Arguments {
  std::string_view operation, from_name, to_name;
  const Tensor &from, &to, &q_weight, &k_weight;
  std::int64_t q_heads;
};

HeadNormProblem problem_of(const Arguments& a) {
  require(
      a.from.shape.rank() == 3 && a.from.shape[1] > 0 && a.from.shape[2] > 0 &&
          a.from.shape[2] <= head_norm::kMostHead,
      a.operation,
      fmt::format("{} must be (N, NH, HS) with NH ≥ 1 and 1 ≤ HS ≤ {}", a.from_name, head_norm::kMostHead));
  const std::int64_t N = a.from.shape[0], NH = a.from.shape[1], HS = a.from.shape[2];
  const DType dtype = a.from.dtype;
  const bool in_place = require_map_of_heads(a.operation, a.from_name, a.from, a.to_name, a.to);
  require(a.q_heads > 0 && a.q_heads < NH, a.operation,
          fmt::format("q_heads is {} of {} heads; q and k need one each", a.q_heads, NH));
  require_tensor(a.operation, "q_weight", a.q_weight, accumulation_dtype(dtype), {HS});
  require_tensor(a.operation, "k_weight", a.k_weight, accumulation_dtype(dtype), {HS});
  return {.N = N,
          .NH = NH,
          .HS = HS,
          .q_heads = a.q_heads,
          .dtype = dtype,
          .in_place = in_place,
          .aligned = begin_at_packs(a.q_weight, a.k_weight) && heads_begin_at_packs(a.from) &&
                     heads_begin_at_packs(a.to)};
}

double elements(const HeadNormProblem& p) {
  return static_cast<double>(p.N * p.NH) * static_cast<double>(p.HS);
}
double bytes_of_rstd(const HeadNormProblem& p) {
  return static_cast<double>(p.N * p.NH) * static_cast<double>(size_of(accumulation_dtype(p.dtype)));
}
double bytes_of_weights(const HeadNormProblem& p) {
  return 2 * static_cast<double>(p.HS) * static_cast<double>(size_of(accumulation_dtype(p.dtype)));
}

}  // namespace

HeadNormForwardProblem HeadNormForward::problem() const {
  HeadNormForwardProblem p{problem_of({kForwardName, "x", "out", x, out, q_weight, k_weight, q_heads})};
  p.rstd = static_cast<bool>(rstd);
  if (p.rstd) require_tensor(kForwardName, "rstd", rstd, accumulation_dtype(p.dtype), {p.N, p.NH});
  return p;
}

HeadNormBackwardProblem HeadNormBackward::problem() const {
  HeadNormBackwardProblem p{problem_of({kBackwardName, "dout", "dx", dout, dx, q_weight, k_weight, q_heads})};
  require_heads(kBackwardName, "x", x, p.dtype, dout.shape);
  require_tensor(kBackwardName, "rstd", rstd, accumulation_dtype(p.dtype), {p.N, p.NH});
  require_tensor(kBackwardName, "dq_weight", dq_weight, accumulation_dtype(p.dtype), {p.HS});
  require_tensor(kBackwardName, "dk_weight", dk_weight, accumulation_dtype(p.dtype), {p.HS});
  p.aligned = p.aligned && heads_begin_at_packs(x);
  p.dweights_store = dweights_store;
  return p;
}

std::string HeadNormProblem::describe() const {
  return fmt::format("N={} NH={}+{} HS={} {}{}{}", N, q_heads, NH - q_heads, HS, name_of(dtype),
                     in_place ? " in place" : "", unaligned_note(aligned));
}

std::string HeadNormForwardProblem::describe() const {
  return HeadNormProblem::describe() + (rstd ? " +rstd" : "");
}
double HeadNormForwardProblem::flops() const {
  return 4 * elements(*this);
}
double HeadNormForwardProblem::bytes() const {
  return 2 * elements(*this) * static_cast<double>(size_of(dtype)) + (rstd ? bytes_of_rstd(*this) : 0) +
         bytes_of_weights(*this);
}

std::string HeadNormBackwardProblem::describe() const {
  return fmt::format("{} dweights{}", HeadNormProblem::describe(), sign_of(dweights_store));
}
double HeadNormBackwardProblem::flops() const {
  return 9 * elements(*this);
}
double HeadNormBackwardProblem::bytes() const {
  const double of_gradients = (dweights_store == Store::add ? 2 : 1) * bytes_of_weights(*this);
  return 3 * elements(*this) * static_cast<double>(size_of(dtype)) + bytes_of_rstd(*this) +
         bytes_of_weights(*this) + of_gradients;
}

namespace head_norm {

std::int64_t row_parts(std::int64_t N) {
  return std::min((N + kRowsPerPart - 1) / kRowsPerPart, kMostParts);
}

std::size_t cpu_workspace(const HeadNormBackwardProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(row_parts(p.N) * 2 * p.HS) * sizeof(float);
}

}  // namespace head_norm
}  // namespace warpwright::ops
