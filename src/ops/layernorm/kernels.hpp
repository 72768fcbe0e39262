// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/layernorm/layernorm.hpp"

namespace warpwright::ops::layernorm {

void forward_reference(const Context& context, const LayerNormForward& args);
void backward_reference(const Context& context, const LayerNormBackward& args);

// Rows are cut into a number of parts that depends on N alone, so that the parameters' gradients have the
// same bits whatever the number of threads. Each part has a row of partial sums for dweight and one for dbias
// in the scratch.
inline constexpr std::int64_t kRowsPerPart = 32;
inline constexpr std::int64_t kMaxParts = 64;
std::int64_t backward_parts(std::int64_t N);

namespace avx2 {
void forward(const Context& context, const LayerNormForward& args);
void backward(const Context& context, const LayerNormBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const LayerNormForward& args);
void backward(const Context& context, const LayerNormBackward& args);
}  // namespace avx512

}  // namespace warpwright::ops::layernorm
