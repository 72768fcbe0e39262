#include "ops/variants.hpp"

#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.warp_row", "cuda.warp_loop", "cpu.avx512", "cpu.avx2", "cpu.portable", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.warp_row", "cuda.two_pass", "cpu.avx512", "cpu.avx2", "cpu.portable", "reference",
};

}  // namespace

const Op<RMSNormForward>& rmsnorm_forward_op() {
  return operation<RMSNormForward, kForward>("rmsnorm.forward");
}

const Op<RMSNormBackward>& rmsnorm_backward_op() {
  return operation<RMSNormBackward, kBackward>("rmsnorm.backward");
}

std::vector<OpInfo> rmsnorm_ops(const DeviceInfo& device) {
  return {info_of(rmsnorm_forward_op(), device), info_of(rmsnorm_backward_op(), device)};
}

}  // namespace warpwright::ops
