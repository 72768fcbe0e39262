#include "ops/variants.hpp"

#include "ops/residual/residual.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<ResidualForward>& residual_forward_op() {
  return operation<ResidualForward, kForward>("residual.forward");
}

const Op<ResidualBackward>& residual_backward_op() {
  return operation<ResidualBackward, kBackward>("residual.backward");
}

std::vector<OpInfo> residual_ops(const DeviceInfo& device) {
  return {info_of(residual_forward_op(), device), info_of(residual_backward_op(), device)};
}

}  // namespace warpwright::ops
