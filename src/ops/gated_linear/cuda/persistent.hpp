// Connects the Kernel objects (persistent.cpp) with the fused CUDA kernels.
#pragma once

#include "ops/gated_linear/gated_linear.hpp"

namespace warpwright::ops::gated_linear::cuda {

// Tiles that follow each other down the rows before the next column of tiles. In a large product, a narrow
// raster keeps the rows in the cache while the columns pass.
constexpr int raster_of(std::int64_t rows) {
  return rows >= 16384 ? 4 : 16;
}

// The product must not be empty, and its tensors must be aligned for the copy engine.
void forward(const Context& context, const GatedForward& args);
void dx(const Context& context, const GatedDx& args);

}  // namespace warpwright::ops::gated_linear::cuda
