// Connects the Kernel objects (persistent.cpp) with the fused CUDA kernels.
#pragma once

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops::gated_linear::cuda {

using matmul::Selection;

// The tile of both kernels: 128 rows of each of two blocks, 96 columns of gate and of up in the forward, 192
// columns of out in dx.
inline constexpr matmul::TileShape kTile{128, 192, 1, 1, 2, 1};

// The product must not be empty, and its tensors must be aligned for the copy engine.
void forward(const Context& context, const GatedForward& args, const Selection& selection);
void dx(const Context& context, const GatedDx& args, const Selection& selection);

}  // namespace warpwright::ops::gated_linear::cuda
