// Shared by the kernels.
#pragma once

#include "ops/pooling/pooling.hpp"

namespace warpwright::ops::pooling {

inline constexpr float kLeastNorm = 1e-12f;

// Throws where the bounds are not what the contract says; every CPU variant begins with it.
void check_bounds(const PoolingForward& args);

}  // namespace warpwright::ops::pooling
