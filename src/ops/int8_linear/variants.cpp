#include "ops/variants.hpp"

#include "ops/int8_linear/int8_linear.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kKernels[] = {
    "cpu.amx_int8",
    "cpu.avx512_vnni",
    "cpu.avx_vnni",
    "reference",
};

}  // namespace

const Op<Int8Linear>& int8_linear_op() {
  return operation<Int8Linear, kKernels>("int8_linear");
}

std::string refuse_int8(const DeviceInfo& device) {
  if (device.device.kind == DeviceKind::cuda) return "runs on a CPU";
  for (const auto& variant : int8_linear_op().variants) {
    if (variant.name != kReference && refuse_device(variant.needs(), device).empty()) return "";
  }
  return "needs a processor with AMX, AVX512_VNNI or AVX-VNNI";
}

std::vector<OpInfo> int8_linear_ops(const DeviceInfo& device) {
  return {info_of(int8_linear_op(), device)};
}

}  // namespace warpwright::ops
