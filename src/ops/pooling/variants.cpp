#include "ops/variants.hpp"

#include "ops/pooling/pooling.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward[] = {
    "cuda.columns",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

}  // namespace

const Op<PoolingForward>& pooling_forward_op() {
  return operation<PoolingForward, kForward>("pooling.forward");
}

std::vector<OpInfo> pooling_ops(const DeviceInfo& device) {
  return {info_of(pooling_forward_op(), device)};
}

}  // namespace warpwright::ops
