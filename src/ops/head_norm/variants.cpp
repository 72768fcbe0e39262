#include "ops/variants.hpp"

#include "ops/head_norm/head_norm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kVariants[] = {
    "cuda.packed",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

}  // namespace

const Op<HeadNormForward>& head_norm_forward_op() {
  return operation<HeadNormForward, kVariants>("head_norm.forward");
}

const Op<HeadNormBackward>& head_norm_backward_op() {
  return operation<HeadNormBackward, kVariants>("head_norm.backward");
}

std::vector<OpInfo> head_norm_ops(const DeviceInfo& device) {
  return {info_of(head_norm_forward_op(), device), info_of(head_norm_backward_op(), device)};
}

}  // namespace warpwright::ops
