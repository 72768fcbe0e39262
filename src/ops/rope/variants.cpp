#include "ops/variants.hpp"

#include "ops/rope/rope.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<RopeForward>& rope_forward_op() {
  return operation<RopeForward, kForward>("rope.forward");
}

const Op<RopeBackward>& rope_backward_op() {
  return operation<RopeBackward, kBackward>("rope.backward");
}

std::vector<OpInfo> rope_ops(const DeviceInfo& device) {
  return {info_of(rope_forward_op(), device), info_of(rope_backward_op(), device)};
}

}  // namespace warpwright::ops
