#include <fmt/format.h>

#include "ops/sampling/kernels.hpp"

namespace warpwright::ops {

SamplingProblem Sampling::problem() const {
  constexpr std::string_view kName = "sampling";
  require(logits.shape.rank() == 2 && logits.shape[1] > 0 && logits.strides[1] == 1, kName,
          "logits must be (M, V) with V ≥ 1 and adjacent columns");
  const std::int64_t M = logits.shape[0], V = logits.shape[1];
  require(V <= sampling::kMostTokens, kName, "at most 2^23 tokens");
  require_tensor(kName, "temperature", temperature, DType::f64, {M});
  require_tensor(kName, "top_k", top_k, DType::i64, {M});
  require_tensor(kName, "top_p", top_p, DType::f64, {M});
  require_tensor(kName, "min_p", min_p, DType::f64, {M});
  require_tensor(kName, "repetition_penalty", repetition_penalty, DType::f64, {M});
  require_tensor(kName, "random", random, DType::i64, {M});
  if (seen) require_tensor(kName, "seen", seen, DType::i32, {M, (V + 31) / 32});
  require_tensor(kName, "token", token, DType::i32, {M});
  if (next_input) require_tensor(kName, "next_input", next_input, DType::i32, {M});
  const std::int64_t stride = M > 1 ? logits.strides[0] : V;
  const bool aligned = begin_at_packs(logits) &&
                       (M < 2 || stride * static_cast<std::int64_t>(size_of(logits.dtype)) % 16 == 0);
  return {.M = M,
          .V = V,
          .stride = stride,
          .dtype = logits.dtype,
          .seen = static_cast<bool>(seen),
          .next_input = static_cast<bool>(next_input),
          .aligned = aligned};
}

std::string SamplingProblem::describe() const {
  return fmt::format("M={} V={}{} {}{}{}{}", M, V, stride == V ? "" : fmt::format(" stride={}", stride),
                     name_of(dtype), seen ? " +seen" : "", next_input ? " +next_input" : "",
                     unaligned_note(aligned));
}
double SamplingProblem::flops() const {
  return 3.0 * static_cast<double>(M * V);
}
double SamplingProblem::bytes() const {
  return static_cast<double>(M * V) * (static_cast<double>(size_of(dtype)) + (seen ? 0.125 : 0));
}

}  // namespace warpwright::ops
