#include <array>

#include "ops/classifier/kernels.hpp"
#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "classifier";

ClassifierProblem problem_of(const Classifier& a) {
  require(a.logits.shape.rank() == 2, kName, "logits must be (N, Vp)");
  const std::int64_t N = a.logits.shape[0], Vp = a.logits.shape[1];
  const DType accumulation = accumulation_dtype(a.logits.dtype);
  if (a.V < 1 || a.V > Vp) require(false, kName, fmt::format("V is {}, needs 1 to Vp = {}", a.V, Vp));
  require_tensor(kName, "logits", a.logits, a.logits.dtype, {N, Vp});
  require_tensor(kName, "targets", a.targets, DType::i32, {N});
  require_tensor(kName, "losses", a.losses, accumulation, {N});
  if (a.weights) require_tensor(kName, "weights", a.weights, accumulation, {N});
  if (a.probabilities) require_tensor(kName, "probabilities", a.probabilities, a.logits.dtype, {N, a.V});
  return {N,
          a.V,
          Vp,
          a.logits.dtype,
          a.gradient,
          static_cast<bool>(a.weights),
          static_cast<bool>(a.probabilities)};
}

using Run = Variant<ClassifierProblem, Classifier>;

constexpr std::array kVariants {
#if WARPWRIGHT_CUDA
  Run{"cuda.shared_row", classifier_kernels::cuda::refuse_shared_row, classifier_kernels::cuda::shared_row},
      Run{"cuda.streamed_row", refuse_cuda, classifier_kernels::cuda::streamed_row},
      Run{"cuda.plain_row", refuse_cuda, classifier_kernels::cuda::plain_row},
#endif
      Run{"cpu.avx512", refuse_avx512, classifier_kernels::avx512::run},
      Run{"cpu.avx2", refuse_avx2, classifier_kernels::avx2::run},
      Run{kReference, refuse_other_devices, classifier_kernels::reference},
};

}  // namespace

std::string ClassifierProblem::describe() const {
  return fmt::format("N={} V={} Vp={} {}{}{}{}", N, V, Vp, name_of(dtype), gradient ? " +gradient" : "",
                     weights ? " +weights" : "", probabilities ? " +probabilities" : "");
}
double ClassifierProblem::flops() const {
  const double exponentials = gradient || probabilities ? 2 : 1;
  return (20 * exponentials + 3) * static_cast<double>(N) * static_cast<double>(V);
}
double ClassifierProblem::bytes() const {
  const double passes = 1 + (gradient ? 1 : 0) + (probabilities ? 1 : 0);
  return passes * static_cast<double>(N) * static_cast<double>(V) * static_cast<double>(size_of(dtype));
}

const Op<ClassifierProblem, Classifier>& classifier_op() {
  static const Op<ClassifierProblem, Classifier> op{kName, kVariants, problem_of};
  return op;
}

}  // namespace warpwright::ops
