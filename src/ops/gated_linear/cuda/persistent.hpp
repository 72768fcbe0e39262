// Connects the Kernel objects (persistent.cpp) with the fused CUDA kernels.
#pragma once

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops::gated_linear::cuda {

using matmul::Selection;

// The tile of the fused products: 128 rows of each of two blocks, 192 columns. They are 96 columns of gate
// and of up in the forward, and columns of out in dx.
inline constexpr matmul::TileShape kTile{128, 192, 1, 1, 2, 1};

// As the selector of matmul would choose it, if this tile were all that it had. bytes: those that the fused
// product reads and writes.
Selection select_fused(const matmul::Request& request, double bytes, const DeviceInfo& device);

Refusal refuse_extent(const matmul::Extent& extent);

// The product must not be empty, and its tensors must be aligned for the copy engine.
void forward(const Context& context, const GatedForward& args, const Selection& selection);
void dx(const Context& context, const GatedDx& args, const Selection& selection);

}  // namespace warpwright::ops::gated_linear::cuda
