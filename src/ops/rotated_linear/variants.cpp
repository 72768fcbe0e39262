#include "ops/variants.hpp"

#include "ops/rotated_linear/rotated_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {"cuda.persistent", "cuda.separate", "cpu.separate", "reference"};

}  // namespace

const Op<RotatedForward>& rotated_forward_op() {
  return operation<RotatedForward, kForward>("rotated_linear.forward");
}

std::vector<OpInfo> rotated_linear_ops(const DeviceInfo& device) {
  return {info_of(rotated_forward_op(), device)};
}

}  // namespace warpwright::ops
