#include "ops/layernorm/variants.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "layernorm.forward";
constexpr std::string_view kBackward = "layernorm.backward";

layernorm::NormForward forward_as_norm(const LayerNormForward& a) {
  return {a, true};
}
layernorm::NormBackward backward_as_norm(const LayerNormBackward& a) {
  return {a, true};
}

NormForwardProblem forward_problem(const LayerNormForward& a) {
  return layernorm::forward_problem(kForward, forward_as_norm(a));
}
NormBackwardProblem backward_problem(const LayerNormBackward& a) {
  return layernorm::backward_problem(kBackward, backward_as_norm(a));
}

void forward_reference(const Context& context, const LayerNormForward& a) {
  layernorm::forward_reference(context, forward_as_norm(a));
}
void backward_reference(const Context& context, const LayerNormBackward& a) {
  layernorm::backward_reference(context, backward_as_norm(a));
}

using Forward = layernorm::ForwardVariants<LayerNormForward, forward_as_norm, forward_reference>;
using Backward = layernorm::BackwardVariants<LayerNormBackward, backward_as_norm, backward_reference>;

}  // namespace

const Op<NormForwardProblem, LayerNormForward>& layernorm_forward_op() {
  static const Op<NormForwardProblem, LayerNormForward> op{kForward, Forward::list, forward_problem};
  return op;
}

const Op<NormBackwardProblem, LayerNormBackward>& layernorm_backward_op() {
  static const Op<NormBackwardProblem, LayerNormBackward> op{kBackward, Backward::list, backward_problem};
  return op;
}

}  // namespace warpwright::ops
