#include "ops/classifier/classifier.hpp"

#include <fmt/format.h>

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "classifier";

}  // namespace

ClassifierProblem Classifier::problem() const {
  require(logits.shape.rank() == 2, kName, "logits must be (N, Vp)");
  const std::int64_t N = logits.shape[0], Vp = logits.shape[1];
  const DType accumulation = accumulation_dtype(logits.dtype);
  if (V < 1 || V > Vp) require(false, kName, fmt::format("V is {}, needs 1 to Vp = {}", V, Vp));
  require_tensor(kName, "logits", logits, logits.dtype, {N, Vp});
  require_tensor(kName, "targets", targets, DType::i32, {N});
  require_tensor(kName, "losses", losses, accumulation, {N});
  if (weights) require_tensor(kName, "weights", weights, accumulation, {N});
  if (probabilities) require_tensor(kName, "probabilities", probabilities, logits.dtype, {N, V});
  return {.N = N,
          .V = V,
          .Vp = Vp,
          .dtype = logits.dtype,
          .gradient = gradient,
          .weights = static_cast<bool>(weights),
          .probabilities = static_cast<bool>(probabilities),
          .aligned = begin_at_packs(logits)};
}

std::string ClassifierProblem::describe() const {
  return fmt::format("N={} V={} Vp={} {}{}{}{}{}", N, V, Vp, name_of(dtype), gradient ? " +gradient" : "",
                     weights ? " +weights" : "", probabilities ? " +probabilities" : "",
                     unaligned_note(aligned));
}
double ClassifierProblem::flops() const {
  const double exponentials = gradient || probabilities ? 2 : 1;
  return (20 * exponentials + 3) * static_cast<double>(N) * static_cast<double>(V);
}
double ClassifierProblem::bytes() const {
  const double passes = 1 + (gradient ? 1 : 0) + (probabilities ? 1 : 0);
  return passes * static_cast<double>(N) * static_cast<double>(V) * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
