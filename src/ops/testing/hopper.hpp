// A Hopper for tests of the selector and of refusals, which need no GPU.
#pragma once

#include "runtime/device.hpp"

namespace warpwright::ops::testing {

inline DeviceInfo a_hopper(const ForcedChoices& forced) {
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.gpu.major = 9;
  device.gpu.multiprocessors = 132;
  device.forced = &forced;
  return device;
}

}  // namespace warpwright::ops::testing
