#include "core/human_bytes.hpp"

#include <fmt/format.h>

namespace warpwright {

std::string human_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace warpwright
