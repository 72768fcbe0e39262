#include "ops/variants.hpp"

#include "ops/norm/norm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.state_row",        "cuda.warp_row", "cuda.block_row", "cuda.loop",    "cuda.welford",
    "cuda.ladder_streaming", "cpu.avx512",    "cpu.avx2",       "cpu.portable", "reference",
};

constexpr std::string_view kBackward[] = {
    "cuda.warp_row",       "cuda.block_row", "cuda.cluster_row", "cuda.two_pass", "cuda.two_stage",
    "cuda.ladder_atomics", "cpu.avx512",     "cpu.avx2",         "cpu.portable",  "reference",
};

}  // namespace

const Op<NormForward>& norm_forward_op() {
  return operation<NormForward, kForward>("norm.forward");
}

const Op<NormBackward>& norm_backward_op() {
  return operation<NormBackward, kBackward>("norm.backward");
}

std::vector<OpInfo> norm_ops(const DeviceInfo& device) {
  return {info_of(norm_forward_op(), device), info_of(norm_backward_op(), device)};
}

}  // namespace warpwright::ops
