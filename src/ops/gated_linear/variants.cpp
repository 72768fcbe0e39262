#include "ops/variants.hpp"

#include "ops/gated_linear/gated_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {"cuda.persistent", "cuda.separate", "cpu.separate", "reference"};
constexpr std::string_view kDx[] = {"cuda.persistent", "cuda.separate", "cpu.separate", "reference"};

}  // namespace

const Op<GatedForward>& gated_forward_op() {
  return operation<GatedForward, kForward>("gated_linear.forward");
}
const Op<GatedDx>& gated_dx_op() {
  return operation<GatedDx, kDx>("gated_linear.dx");
}

std::vector<OpInfo> gated_linear_ops(const DeviceInfo& device) {
  return {info_of(gated_forward_op(), device), info_of(gated_dx_op(), device)};
}

}  // namespace warpwright::ops
