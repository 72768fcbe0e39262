#include "ops/variants.hpp"

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kVariants[] = {
    "cuda.multi_tensor",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

}  // namespace

const Op<GlobalNorm>& global_norm_op() {
  return operation<GlobalNorm, kVariants>("global_norm");
}

std::vector<OpInfo> global_norm_ops(const DeviceInfo& device) {
  return {info_of(global_norm_op(), device)};
}

}  // namespace warpwright::ops
