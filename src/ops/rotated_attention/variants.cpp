#include "ops/variants.hpp"

#include "ops/rotated_attention/rotated_attention.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kBackward[] = {"cuda.flash_sm90", "cuda.separate", "cpu.separate", "reference"};

}  // namespace

const Op<RotatedAttentionBackward>& rotated_attention_backward_op() {
  return operation<RotatedAttentionBackward, kBackward>("rotated_attention.backward");
}

std::vector<OpInfo> rotated_attention_ops(const DeviceInfo& device) {
  return {info_of(rotated_attention_backward_op(), device)};
}

}  // namespace warpwright::ops
