// The oracle: the oracles of the product and of the gate, one after the other.
#include "ops/gated_linear/kernels.hpp"

namespace warpwright::ops::gated_linear {
namespace {

void forward_reference(const Context& context, const GatedForward& args) {
  run_oracle_of_part(context, matmul_forward_op(), product_of(args));
  run_oracle_of_part(context, gate_forward_op(), gate_of(args));
}

void dx_reference(const Context& context, const GatedDx& args) {
  run_oracle_of_part(context, matmul_dx_op(), product_of(args));
  run_oracle_of_part(context, gate_backward_op(), gate_of(args));
}

}  // namespace
}  // namespace warpwright::ops::gated_linear

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GatedForward, "reference"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = gated_linear::forward_reference,
    .workspace = workspace_of_oracles<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "reference"_kernel) = {.needs = Needs::cpu,
                                                  .dtypes = kFloatingDTypes,
                                                  .run = gated_linear::dx_reference,
                                                  .workspace = workspace_of_oracles<GatedDxProblem>};

}  // namespace warpwright::ops
