// The rounding of one row to int8 in plain C++: for weights, and for the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/int8_linear/kernels.hpp"

namespace warpwright::ops::int8 {

struct RowScale {
  float scale = 0;    // NaN if a value of the row is not finite
  float inverse = 0;  // 0 if the row counts as zeros or a value is not finite
};

template <class T>
RowScale scale_of(const T* row, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(row[i]);
    if (!std::isfinite(value)) return {.scale = std::numeric_limits<float>::quiet_NaN()};
    largest = std::max(largest, std::abs(value));
  }
  if (largest < kLeastMaximum) return {};
  return {.scale = largest / kLargest, .inverse = kLargest / largest};
}

inline std::int8_t round_to_int8(float value, const RowScale& scale) {
  return scale.inverse == 0 ? std::int8_t{0}
                            : static_cast<std::int8_t>(std::nearbyint(value * scale.inverse));
}

}  // namespace warpwright::ops::int8
