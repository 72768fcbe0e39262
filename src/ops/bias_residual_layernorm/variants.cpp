#include "ops/variants.hpp"

#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.state_row", "cuda.warp_row", "cuda.warp_loop", "cpu.avx512",
    "cpu.avx2",       "cpu.portable",  "reference",
};

}  // namespace

const Op<BiasResidualLayerNormForward>& bias_residual_layernorm_forward_op() {
  return operation<BiasResidualLayerNormForward, kForward>("bias_residual_layernorm.forward");
}

std::vector<OpInfo> bias_residual_layernorm_ops(const DeviceInfo& device) {
  return {info_of(bias_residual_layernorm_forward_op(), device)};
}

}  // namespace warpwright::ops
