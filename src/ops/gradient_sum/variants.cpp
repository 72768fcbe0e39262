#include "ops/variants.hpp"

#include "ops/gradient_sum/gradient_sum.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kVariants[] = {
    "cuda.multi_tensor",
    "cpu.avx512",
    "cpu.avx2",
    "reference",
};

}  // namespace

const Op<GradientSum>& gradient_sum_op() {
  return operation<GradientSum, kVariants>("gradient_sum");
}

std::vector<OpInfo> gradient_sum_ops(const DeviceInfo& device) {
  return {info_of(gradient_sum_op(), device)};
}

}  // namespace warpwright::ops
