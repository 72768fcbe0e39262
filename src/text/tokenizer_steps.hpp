// Converts between the steps around the model in a tokenizer.json (normalizer, pre_tokenizer, decoder and
// post_processor) and the rules of a TokenizerSpec. A step that is not supported is an Error that names it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/json_field.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::text {

// Reads the four steps from the document's root. The spec gets `characters` if no step is ByteLevel.
void read_steps(const JsonField& root, TokenizerSpec& spec);

// The values of the four fields.
nlohmann::ordered_json format_normalizer(const TokenizerSpec& spec);
nlohmann::ordered_json format_pre_tokenizer(const TokenizerSpec& spec);
nlohmann::ordered_json format_decoder(const TokenizerSpec& spec);
nlohmann::ordered_json format_post_processor(const TokenizerSpec& spec);

}  // namespace warpwright::text
