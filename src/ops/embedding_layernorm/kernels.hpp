// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/embedding_layernorm/embedding_layernorm.hpp"

namespace warpwright::ops::embedding_layernorm {

void forward_reference(const Context& context, const EmbeddingLayerNormForward& args);

namespace avx2 {
void forward(const Context& context, const EmbeddingLayerNormForward& args);
}
namespace avx512 {
void forward(const Context& context, const EmbeddingLayerNormForward& args);
}

namespace cuda {
// How many 16-byte packs of a row a lane has; 0: a warp cannot hold such a row.
int warp_row_packs(std::int64_t C, DType dtype);
void warp_row_forward(const Context& context, const EmbeddingLayerNormForward& args);
void warp_loop_forward(const Context& context, const EmbeddingLayerNormForward& args);
}  // namespace cuda

}  // namespace warpwright::ops::embedding_layernorm
