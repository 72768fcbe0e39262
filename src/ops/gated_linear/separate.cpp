// The product and the gate by the two operations' own kernels, one after the other.
#include "ops/gated_linear/kernels.hpp"
#include "ops/matmul/time.hpp"

namespace warpwright::ops::gated_linear {
namespace {

// Seconds, or the nominal cost of a product whose kernel has no prediction.
template <class Problem>
double cost(const Problem& p, const DeviceInfo& device) {
  const auto [product, gate] = parts_of(p);
  return choose(device, product.op, product.problem).variant->cost(product.problem, device) +
         gate.problem.bytes() / matmul::kPassBandwidth;
}

void forward(const Context& context, const GatedForward& args) {
  run_part(context, matmul_forward_op(), product_of(args));
  run_part(context, gate_forward_op(), gate_of(args));
}

void dx(const Context& context, const GatedDx& args) {
  run_part(context, matmul_dx_op(), product_of(args));
  run_part(context, gate_backward_op(), gate_of(args));
}

}  // namespace
}  // namespace warpwright::ops::gated_linear

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GatedForward, "cpu.separate"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kCpuDTypes,
    .run = gated_linear::forward,
    .workspace = workspace_of_parts<GatedForwardProblem>,
    .configuration = configuration_of_parts<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "cpu.separate"_kernel) = {.needs = Needs::cpu,
                                                     .dtypes = kCpuDTypes,
                                                     .run = gated_linear::dx,
                                                     .workspace = workspace_of_parts<GatedDxProblem>,
                                                     .configuration = configuration_of_parts<GatedDxProblem>};
WARPWRIGHT_KERNEL(GatedForward, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = gated_linear::forward,
    .workspace = workspace_of_parts<GatedForwardProblem>,
    .cost = gated_linear::cost<GatedForwardProblem>,
    .configuration = configuration_of_parts<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "cuda.separate"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = gated_linear::dx,
    .workspace = workspace_of_parts<GatedDxProblem>,
    .cost = gated_linear::cost<GatedDxProblem>,
    .configuration = configuration_of_parts<GatedDxProblem>};

}  // namespace warpwright::ops
