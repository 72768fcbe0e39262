// attention's flash_sm90, which rotates dq and dk back on their way to memory.
#include "ops/attention/cuda/rotation.hpp"
#include "ops/rotated_attention/kernels.hpp"

namespace warpwright::ops::rotated_attention::cuda {
namespace {

Refusal refuse(const RotatedAttentionProblem& p, const DeviceInfo& device) {
  if (forces_parts(p, device)) return kPartsForced;
  if (p.rope.layout != RopeLayout::half) return "takes the pairs (i, i + R/2) only";
  if (p.rope.R != p.rope.HS) return "rotates whole heads only";
  if (!p.rope.aligned) return "a row or a head does not begin at a multiple of 16 bytes";
  return attention::cuda::refuse_flash_sm90(p.attention, device);
}

std::size_t workspace(const RotatedAttentionProblem& p, const DeviceInfo& device) {
  return attention::cuda::flash_sm90_workspace(p.attention, device);
}

void run(const Context& context, const RotatedAttentionBackward& args) {
  attention::cuda::flash_sm90_backward(context, attention_of(args),
                                       {.positions = args.positions.as<std::int32_t>(),
                                        .cos = args.cos.as<float>(),
                                        .sin = args.sin.as<float>(),
                                        .wrong = static_cast<unsigned long long*>(args.wrong.data),
                                        .P = args.cos.shape[0]});
}

}  // namespace
}  // namespace warpwright::ops::rotated_attention::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedAttentionBackward, "cuda.flash_sm90"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = rotated_attention::cuda::run,
    .refuse = rotated_attention::cuda::refuse,
    .workspace = rotated_attention::cuda::workspace};

}  // namespace warpwright::ops
