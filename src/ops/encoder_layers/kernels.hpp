// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/encoder_layers/encoder_layers.hpp"

namespace warpwright::ops::encoder_layers {

// Every formula's result is rounded to the dtype of hidden.
void forward_reference(const Context& context, const EncoderLayersForward& args);

namespace cuda {
std::string refuse_one_launch(const EncoderLayersProblem& p, const DeviceInfo& device);
std::size_t one_launch_workspace(const EncoderLayersProblem& p, const DeviceInfo& device);
void one_launch_forward(const Context& context, const EncoderLayersForward& args);
}  // namespace cuda

}  // namespace warpwright::ops::encoder_layers
