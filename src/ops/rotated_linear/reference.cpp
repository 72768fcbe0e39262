// The oracle: the oracles of the product and of the rotation, one after the other.
#include "ops/rotated_linear/kernels.hpp"

namespace warpwright::ops::rotated_linear {
namespace {

void forward_reference(const Context& context, const RotatedForward& args) {
  run_oracle_of_part(context, matmul_forward_op(), product_of(args));
  run_oracle_of_part(context, rope_forward_op(), rope_of(args));
}

}  // namespace
}  // namespace warpwright::ops::rotated_linear

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RotatedForward, "reference"_kernel) = {
    .needs = Needs::cpu,
    .dtypes = kFloatingDTypes,
    .run = rotated_linear::forward_reference,
    .workspace = workspace_of_oracles<RotatedForwardProblem>};

}  // namespace warpwright::ops
