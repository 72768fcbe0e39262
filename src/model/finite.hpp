// Looks for values that are not finite.
#pragma once

#include <cstdint>

namespace warpwright {

template <class T>
bool all_finite(const T* values, std::int64_t count) {
  float check = 0;  // becomes NaN at the first value that is NaN or infinite
  for (std::int64_t i = 0; i < count; ++i) check += static_cast<float>(values[i]) * 0;
  return check == 0;
}

}  // namespace warpwright
