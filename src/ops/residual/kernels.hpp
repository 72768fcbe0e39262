// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/residual/residual.hpp"

namespace warpwright::ops::residual {

void forward_reference(const Context& context, const ResidualForward& args);
void backward_reference(const Context& context, const ResidualBackward& args);

namespace avx2 {
void forward(const Context& context, const ResidualForward& args);
void backward(const Context& context, const ResidualBackward& args);
}  // namespace avx2

namespace avx512 {
void forward(const Context& context, const ResidualForward& args);
void backward(const Context& context, const ResidualBackward& args);
}  // namespace avx512

namespace cuda {
void packed_forward(const Context& context, const ResidualForward& args);
void packed_backward(const Context& context, const ResidualBackward& args);
void plain_forward(const Context& context, const ResidualForward& args);
void plain_backward(const Context& context, const ResidualBackward& args);
}  // namespace cuda

}  // namespace warpwright::ops::residual
