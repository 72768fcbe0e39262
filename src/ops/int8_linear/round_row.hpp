// The rounding of rows in plain C++: of weights, and for the reference also of x.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/int8_linear/kernels.hpp"

namespace warpwright::ops::int8 {

struct RowScale {
  float scale = 0;    // NaN if a value of the row, or its range, is not finite
  float inverse = 0;  // 0 if the row counts as zeros or is not finite
  int zero = 0;       // z of a row of x
};

// The scale of a row of weight / c, and of a row of x · c.
template <class T>
RowScale weight_scale(const T* row, const float* factors, std::int64_t count) {
  float largest = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const float value = static_cast<float>(row[k]) / factors[k];
    if (!std::isfinite(value)) return {.scale = std::numeric_limits<float>::quiet_NaN()};
    largest = std::max(largest, std::abs(value));
  }
  if (largest < kLeastRange) return {};
  return {.scale = largest / kMostWeight, .inverse = kMostWeight / largest};
}
template <class T>
RowScale x_scale(const T* row, const float* factors, std::int64_t count) {
  float low = 0, high = 0;
  bool finite = true;
  for (std::int64_t k = 0; k < count; ++k) {
    const float value = static_cast<float>(row[k]) * factors[k];
    finite = finite && std::isfinite(value);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const float range = high - low;
  if (!finite || !std::isfinite(range)) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  if (range < kLeastRange) return {};
  const float inverse = kMostX / range;
  return {
      .scale = range / kMostX, .inverse = inverse, .zero = static_cast<int>(std::nearbyint(-low * inverse))};
}

inline std::int8_t round_weight(float value, float factor, const RowScale& scale) {
  if (scale.inverse == 0) return 0;
  return static_cast<std::int8_t>(std::nearbyint(value / factor * scale.inverse));
}
inline std::uint8_t round_x(float value, float factor, const RowScale& scale) {
  if (scale.inverse == 0) return 0;
  const int q = static_cast<int>(std::nearbyint(value * factor * scale.inverse)) + scale.zero;
  return static_cast<std::uint8_t>(std::clamp(q, 0, static_cast<int>(kMostX)));
}

}  // namespace warpwright::ops::int8
