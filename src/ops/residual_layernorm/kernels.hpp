// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/residual_layernorm/residual_layernorm.hpp"

namespace warpwright::ops::residual_layernorm {

void forward_reference(const Context& context, const ResidualLayerNormForward& args);

namespace avx2 {
void forward(const Context& context, const ResidualLayerNormForward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const ResidualLayerNormForward& args);
}  // namespace avx512

namespace cuda {
void warp_row_forward(const Context& context, const ResidualLayerNormForward& args);
void composed_forward(const Context& context, const ResidualLayerNormForward& args);
}  // namespace cuda

}  // namespace warpwright::ops::residual_layernorm
