// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/gelu/gelu.hpp"

namespace warpwright::ops::gelu {

void forward_reference(const Context& context, const GeluForward& args);
void backward_reference(const Context& context, const GeluBackward& args);

namespace avx2 {
void forward(const Context& context, const GeluForward& args);
void backward(const Context& context, const GeluBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const GeluForward& args);
void backward(const Context& context, const GeluBackward& args);
}  // namespace avx512

namespace cuda {
void packed_forward(const Context& context, const GeluForward& args);
void packed_backward(const Context& context, const GeluBackward& args);
void plain_forward(const Context& context, const GeluForward& args);
void plain_backward(const Context& context, const GeluBackward& args);
}  // namespace cuda

}  // namespace warpwright::ops::gelu
