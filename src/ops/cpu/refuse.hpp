// The refusals that most CPU variants share, as the functions that stand in a list of variants.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

template <class Problem>
std::string refuse_other_devices(const Problem&, const DeviceInfo& device) {
  return device.device.kind == DeviceKind::cpu ? "" : "runs on a CPU";
}

template <class Problem>
std::string refuse_avx2(const Problem& p, const DeviceInfo& device) {
  return refuse_without_avx2(p.dtype, device);
}

template <class Problem>
std::string refuse_avx512(const Problem& p, const DeviceInfo& device) {
  return refuse_without_avx512(p.dtype, device);
}

}  // namespace warpwright::ops
