// The product and the rotation by the two operations' own kernels, one after the other.
#include "ops/matmul/time.hpp"
#include "ops/rotated_linear/kernels.hpp"

namespace warpwright::ops::rotated_linear {
namespace {

// Seconds, or the nominal cost of a product whose kernel has no prediction.
double cost(const RotatedForwardProblem& p, const DeviceInfo& device) {
  return choose(device, matmul_forward_op(), p.product).variant->cost(p.product, device) +
         p.rope.bytes() / matmul::kPassBandwidth;
}

void forward(const Context& context, const RotatedForward& args) {
  run_part(context, matmul_forward_op(), product_of(args));
  run_part(context, rope_forward_op(), rope_of(args));
}

}  // namespace
}  // namespace warpwright::ops::rotated_linear

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedForward, "cpu.separate"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kCpuDTypes,
    .run = rotated_linear::forward,
    .workspace = workspace_of_parts<RotatedForwardProblem>,
    .configuration = configuration_of_parts<RotatedForwardProblem>};
WARPWRIGHT_KERNEL(RotatedForward, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = rotated_linear::forward,
    .workspace = workspace_of_parts<RotatedForwardProblem>,
    .cost = rotated_linear::cost,
    .configuration = configuration_of_parts<RotatedForwardProblem>};

}  // namespace warpwright::ops
