// Shared by tests of models: how far a result is from another.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>

namespace warpwright {

// ‖out − wanted‖ / ‖wanted‖
inline double relative_error(std::span<const float> out, std::span<const float> wanted) {
  EXPECT_EQ(out.size(), wanted.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double d = static_cast<double>(out[i]) - static_cast<double>(wanted[i]);
    error += d * d;
    norm += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace warpwright
