// Converts between the steps around the model in a tokenizer.json (normalizer, pre_tokenizer, decoder and
// post_processor) and the rules of a TokenizerSpec. A step that is not supported is an Error that names it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "text/json_field.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::text {

// The steps of a Sequence (its key differs), the one step, or none for null.
std::vector<JsonField> steps_of(const JsonField& field, const char* key);

// ByteLevel may appear in three places with the same fields. Only the pre-tokenizer's fields affect ids.
void require_byte_level(const JsonField& field);

// Reads the four steps from the document's root. The spec gets `characters` if no step is ByteLevel.
void read_steps(const JsonField& root, TokenizerSpec& spec);

// The values of the four fields.
nlohmann::ordered_json format_normalizer(const TokenizerSpec& spec);
nlohmann::ordered_json format_pre_tokenizer(const TokenizerSpec& spec);
nlohmann::ordered_json format_decoder(const TokenizerSpec& spec);
nlohmann::ordered_json format_post_processor(const TokenizerSpec& spec);

}  // namespace warpwright::text
