// Attention's backward and the rotation's by the two operations' own kernels, one after the other.
#include "ops/rotated_attention/kernels.hpp"

namespace warpwright::ops::rotated_attention {
namespace {

void backward(const Context& context, const RotatedAttentionBackward& args) {
  run_part(context, attention_backward_op(), attention_of(args));
  run_part(context, rope_backward_op(), rope_of(args));
}

}  // namespace
}  // namespace warpwright::ops::rotated_attention

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedAttentionBackward, "cpu.separate"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kCpuDTypes,
    .run = rotated_attention::backward,
    .workspace = workspace_of_parts<RotatedAttentionProblem>,
    .configuration = configuration_of_parts<RotatedAttentionProblem>};
WARPWRIGHT_KERNEL(RotatedAttentionBackward, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = rotated_attention::backward,
    .workspace = workspace_of_parts<RotatedAttentionProblem>,
    .configuration = configuration_of_parts<RotatedAttentionProblem>};

}  // namespace warpwright::ops
