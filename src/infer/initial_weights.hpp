// A decoder with the weights that a training starts from, for tests and benches.
#pragma once

#include <memory>

#include "model/gpt2_decoder.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

inline DecoderWeights initial_weights(const std::shared_ptr<const Decoder>& decoder, DType dtype,
                                      Device device) {
  const auto planned = std::make_shared<Planned<DecoderParameters>>([=](Allocator& allocator) {
    return decoder->allocate_parameters(dtype, Category::parameters, "", allocator);
  });
  planned->take(device);
  decoder->initialize(1, writer_to(planned->tensors()));
  return {.decoder = decoder, .dtype = dtype, .parameters = planned->tensors(), .memory = planned};
}

inline DecoderWeights initial_weights(DType dtype, const GPT2Config& sizes, Device device = {}) {
  return initial_weights(std::make_shared<GPT2Decoder>(sizes), dtype, device);
}

}  // namespace warpwright
