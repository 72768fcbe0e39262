// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/embedding/embedding.hpp"

namespace warpwright::ops::embedding {

void forward_reference(const Context& context, const EmbeddingForward& args);
void backward_reference(const Context& context, const EmbeddingBackward& args);

namespace avx2 {
void forward(const Context& context, const EmbeddingForward& args);
void backward(const Context& context, const EmbeddingBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const EmbeddingForward& args);
void backward(const Context& context, const EmbeddingBackward& args);
}  // namespace avx512

namespace cuda {
void packed_forward(const Context& context, const EmbeddingForward& args);
void plain_forward(const Context& context, const EmbeddingForward& args);
void plain_backward(const Context& context, const EmbeddingBackward& args);
void sorted_backward(const Context& context, const EmbeddingBackward& args);
std::size_t sorted_workspace(const EmbeddingBackwardProblem& p, const DeviceInfo& device);
}  // namespace cuda

}  // namespace warpwright::ops::embedding
