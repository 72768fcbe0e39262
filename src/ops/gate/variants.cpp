#include "ops/variants.hpp"

#include "ops/gate/gate.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.packed", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<GateForward>& gate_forward_op() {
  return operation<GateForward, kForward>("gate.forward");
}

const Op<GateBackward>& gate_backward_op() {
  return operation<GateBackward, kBackward>("gate.backward");
}

std::vector<OpInfo> gate_ops(const DeviceInfo& device) {
  return {info_of(gate_forward_op(), device), info_of(gate_backward_op(), device)};
}

}  // namespace warpwright::ops
