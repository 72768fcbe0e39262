// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/pooling/pooling.hpp"

namespace warpwright::ops::pooling {

inline constexpr float kLeastNorm = 1e-12f;

// Throws where the bounds are not what the contract says; every CPU variant begins with it.
void check_bounds(const PoolingForward& args);

void forward_reference(const Context& context, const PoolingForward& args);

namespace avx2 {
void forward(const Context& context, const PoolingForward& args);
}
namespace avx512 {
void forward(const Context& context, const PoolingForward& args);
}
namespace cuda {
void columns_forward(const Context& context, const PoolingForward& args);
}

}  // namespace warpwright::ops::pooling
