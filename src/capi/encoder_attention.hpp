// A call's attention: the C ABI's structure as tensors, checked.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/bert_attention.hpp"
#include "runtime/context.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

struct EncoderAttention {
  BertAttention changes;  // with a mask for pairs
  Tensor tokens;          // a mask (sequences, length), on the device or in the host's memory

  bool has_pairs() const { return changes.bias || changes.mask; }
};

// Throws Error if the structure cannot be. The model checks sizes that depend on it.
EncoderAttention attention_of(std::string_view function, const warpwright_encoder_tokens_args& args,
                              DType dtype, Device device);

// The bytes of `tokens`. Waits for the device if they are there.
std::vector<std::uint8_t> token_bytes(Context& context, const Tensor& tokens);

}  // namespace warpwright::capi
