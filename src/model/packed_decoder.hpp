// A decoder's weights as a device's kernels take them for inference: on a CPU, each matrix is laid out once
// and only the packed bytes are kept. A token embedding that is also the head is kept in both forms.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "model/decoder.hpp"
#include "model/packed_layout.hpp"
#include "runtime/context.hpp"

namespace warpwright {

// Calls `write` twice: for the parameters that stay as they are, then for the matrices to pack; once if this
// device packs none. The Context
// gives the device, the threads to pack with, and the forced variants, which the sessions' Contexts must
// share. In int8, a matrix with a value that is not finite is an Error.
DecoderWeights inference_weights(const Context& context, std::shared_ptr<const Decoder> decoder,
                                 const Precision& precision,
                                 const std::function<void(const ParameterWriter&)>& write);
// Those of a model's folder or file, verified.
DecoderWeights load_inference_weights(const Context& context, const std::filesystem::path& source,
                                      const Precision& precision);

}  // namespace warpwright
