// Compares the memory of a DecodingEngine with the memory that is available, before it takes any.
#pragma once

#include "infer/decoding_engine.hpp"

namespace warpwright {

// The options with as many sequences as fit, at most options.sequences. Throws OutOfMemory if not even one
// does.
DecodingOptions with_sequences_that_fit(Context& context, const DecoderWeights& model,
                                        const DecodingOptions& options);

// Throws OutOfMemory, which says what would fit, if the engine does not.
void require_room(Context& context, const DecoderWeights& model, const DecodingOptions& options);

}  // namespace warpwright
