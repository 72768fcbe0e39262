#include "ops/variants.hpp"

#include "ops/sampling/sampling.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kSampling[] = {"cuda.block_row", "cpu.rows", "reference"};

}  // namespace

const Op<Sampling>& sampling_op() {
  return operation<Sampling, kSampling>("sampling");
}

std::vector<OpInfo> sampling_ops(const DeviceInfo& device) {
  return {info_of(sampling_op(), device)};
}

}  // namespace warpwright::ops
