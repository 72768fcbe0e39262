#include "ops/variants.hpp"

#include "ops/layernorm/layernorm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.warp_row", "cuda.warp_loop", "cpu.avx512", "cpu.avx2", "cpu.portable", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.warp_row", "cuda.two_pass", "cpu.avx512", "cpu.avx2", "cpu.portable", "reference",
};

}  // namespace

const Op<LayerNormForward>& layernorm_forward_op() {
  return operation<LayerNormForward, kForward>("layernorm.forward");
}

const Op<LayerNormBackward>& layernorm_backward_op() {
  return operation<LayerNormBackward, kBackward>("layernorm.backward");
}

std::vector<OpInfo> layernorm_ops(const DeviceInfo& device) {
  return {info_of(layernorm_forward_op(), device), info_of(layernorm_backward_op(), device)};
}

}  // namespace warpwright::ops
