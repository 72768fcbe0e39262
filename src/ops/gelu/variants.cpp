#include "ops/variants.hpp"

#include "ops/gelu/gelu.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.packed", "cuda.plain", "cuda.ladder_coshf", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<GeluForward>& gelu_forward_op() {
  return operation<GeluForward, kForward>("gelu.forward");
}

const Op<GeluBackward>& gelu_backward_op() {
  return operation<GeluBackward, kBackward>("gelu.backward");
}

std::vector<OpInfo> gelu_ops(const DeviceInfo& device) {
  return {info_of(gelu_forward_op(), device), info_of(gelu_backward_op(), device)};
}

}  // namespace warpwright::ops
