#include "ops/layernorm/variants.hpp"
#include "ops/rmsnorm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "rmsnorm.forward";
constexpr std::string_view kBackward = "rmsnorm.backward";

NormForwardProblem forward_problem(const RMSNormForward& a) {
  return layernorm::forward_problem(kForward, rmsnorm::as_norm(a));
}
NormBackwardProblem backward_problem(const RMSNormBackward& a) {
  return layernorm::backward_problem(kBackward, rmsnorm::as_norm(a));
}

using Forward = layernorm::ForwardVariants<RMSNormForward, rmsnorm::as_norm, rmsnorm::forward_reference>;
using Backward = layernorm::BackwardVariants<RMSNormBackward, rmsnorm::as_norm, rmsnorm::backward_reference>;

}  // namespace

const Op<NormForwardProblem, RMSNormForward>& rmsnorm_forward_op() {
  static const Op<NormForwardProblem, RMSNormForward> op{kForward, Forward::list, forward_problem};
  return op;
}

const Op<NormBackwardProblem, RMSNormBackward>& rmsnorm_backward_op() {
  static const Op<NormBackwardProblem, RMSNormBackward> op{kBackward, Backward::list, backward_problem};
  return op;
}

}  // namespace warpwright::ops
