// The fp32 master of a bf16 parameter, in 16 more bits. The parameter is the master rounded to nearest, and
// bf16 is the upper half of an fp32, so that the two differ by at most 2^15 units of the master's last place.
// Parameter and difference together are the master.
//
// Of the 2^16 + 1 possible differences one does not fit, 2^15. Such a master, exactly halfway beyond an even
// parameter, becomes the next fp32 number towards 0. The functions are constexpr because GPU kernels call
// them, too.
#pragma once

#include <bit>
#include <cstdint>

namespace warpwright::ops::adamw_kernels {

constexpr float master_of(std::uint16_t parameter, std::int16_t remainder) {
  const std::uint32_t upper = static_cast<std::uint32_t>(parameter) << 16;
  return std::bit_cast<float>(upper + static_cast<std::uint32_t>(std::int32_t{remainder}));
}

// parameter: the master rounded to nearest. A NaN stays one.
constexpr std::int16_t remainder_of(float master, std::uint16_t parameter) {
  const std::uint32_t upper = static_cast<std::uint32_t>(parameter) << 16;
  const auto difference = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(master) - upper);
  return static_cast<std::int16_t>(
      difference < INT16_MIN ? INT16_MIN : (difference > INT16_MAX ? INT16_MAX : difference));
}

}  // namespace warpwright::ops::adamw_kernels
