#include "ops/variants.hpp"

#include "ops/residual_layernorm/residual_layernorm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.warp_row", "cuda.warp_loop", "cpu.avx512", "cpu.avx2", "cpu.portable", "reference",
};

}  // namespace

const Op<ResidualLayerNormForward>& residual_layernorm_forward_op() {
  return operation<ResidualLayerNormForward, kForward>("residual_layernorm.forward");
}

std::vector<OpInfo> residual_layernorm_ops(const DeviceInfo& device) {
  return {info_of(residual_layernorm_forward_op(), device)};
}

}  // namespace warpwright::ops
