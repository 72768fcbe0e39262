#include "ops/variants.hpp"

#include "ops/adamw/adamw.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kVariants[] = {
    "cuda.multi_tensor", "cuda.plain", "cpu.avx512", "cpu.avx2", "reference",
};

}  // namespace

const Op<AdamW>& adamw_op() {
  return operation<AdamW, kVariants>("adamw");
}

std::vector<OpInfo> adamw_ops(const DeviceInfo& device) {
  return {info_of(adamw_op(), device)};
}

}  // namespace warpwright::ops
