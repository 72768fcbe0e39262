// Shared by the kernels.
#pragma once

#include "ops/pooling/pooling.hpp"

namespace warpwright::ops::pooling {

inline constexpr float kLeastNorm = 1e-12f;

// Throws Error if the offsets do not ascend from 0 to at most N. Every CPU variant calls it first.
void check_bounds(const PoolingForward& args);

}  // namespace warpwright::ops::pooling
