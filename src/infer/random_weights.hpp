// A decoder with initial weights, for tests.
#pragma once

#include <memory>

#include "model/gpt2_decoder.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

inline DecoderWeights random_weights(DType dtype, const GPT2Config& sizes, Device device = {}) {
  const auto decoder = std::make_shared<GPT2Decoder>(sizes);
  const auto planned = std::make_shared<Planned<DecoderParameters>>([=](Allocator& allocator) {
    return decoder->allocate_parameters(dtype, Category::parameters, "", allocator);
  });
  planned->take(device);
  decoder->initialize(1, writer_to(planned->tensors()));
  return {.decoder = decoder, .dtype = dtype, .parameters = planned->tensors(), .memory = planned};
}

}  // namespace warpwright
