// A decoder with the weights that a training starts from, for tests.
#pragma once

#include <memory>

#include "model/gpt2_decoder.hpp"

namespace warpwright {

inline DecoderWeights initial_weights(const std::shared_ptr<const Decoder>& decoder, DType dtype,
                                      Device device) {
  return unpacked_weights(decoder, dtype, device,
                          [&](const ParameterWriter& write) { decoder->initialize(1, write); });
}

inline DecoderWeights initial_weights(DType dtype, const GPT2Config& sizes, Device device = {}) {
  return initial_weights(std::make_shared<GPT2Decoder>(sizes), dtype, device);
}

}  // namespace warpwright
