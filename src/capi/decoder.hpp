// A decoder of the C ABI, shared by the files that make it and that run its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "capi/context.hpp"
#include "capi/handles.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/text_sequences.hpp"
#include "text/tokenizer.hpp"

struct warpwright_decoder {
  warpwright_decoder(std::shared_ptr<warpwright_context> owner, const warpwright_decoder_options& options);

  // Takes over the owner's threads for the next call.
  void follow_owner();
  // Throws Error, which names the function, if there is none.
  const warpwright::text::Tokenizer& require_tokenizer(std::string_view function) const;

  std::shared_ptr<warpwright_context> owner;
  warpwright::Context context;
  warpwright::DecoderWeights model;
  std::optional<warpwright::text::Tokenizer> tokenizer;
  std::vector<std::int32_t> end_of_text;
  warpwright::DecodingOptions options;  // as the engine was made
  std::optional<warpwright::DecodingEngine> engine;
  std::optional<warpwright::TextSequences> sequences;
  std::vector<warpwright::TextSequences::Event> events;  // of the latest step, with text in UTF-8
};

namespace warpwright::capi {

using Decoders = Handles<warpwright_decoder>;

struct DecoderInCall : ModelInCall<warpwright_decoder> {
  DecoderInCall(std::string_view function, const warpwright_decoder* handle)
      : ModelInCall(function, "decoder", handle) {}
};

}  // namespace warpwright::capi
