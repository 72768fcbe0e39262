// The oracle: the oracles of attention and of the rotation, one after the other.
#include "ops/rotated_attention/kernels.hpp"

namespace warpwright::ops::rotated_attention {
namespace {

void backward_reference(const Context& context, const RotatedAttentionBackward& args) {
  run_oracle_of_part(context, attention_backward_op(), attention_of(args));
  run_oracle_of_part(context, rope_backward_op(), rope_of(args));
}

}  // namespace
}  // namespace warpwright::ops::rotated_attention

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedAttentionBackward, "reference"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = rotated_attention::backward_reference,
    .workspace = workspace_of_oracles<RotatedAttentionProblem>};

}  // namespace warpwright::ops
