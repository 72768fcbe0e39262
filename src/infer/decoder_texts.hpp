// The texts of a decoder's folder: its tokenizer, how a prompt begins, and which tokens end a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "model/decoder.hpp"
#include "text/tokenizer.hpp"

namespace warpwright {

// The dtype that a model computes in if nobody chooses one: bf16 for bf16 weights, else fp32.
DType dtype_of_model(const std::filesystem::path& source);

// Loads a folder's tokenizer. Throws Error if it has ids beyond the model's vocabulary.
text::Tokenizer load_tokenizer(const std::filesystem::path& folder, const Decoder& decoder);

// The ids of a prompt, after what the template puts before a text. A prompt without any gets the end-of-text
// token, or nothing if the tokenizer has none.
std::vector<std::int32_t> prompt_ids(const text::Tokenizer& tokenizer, std::string_view text);

// The tokens that end a text: those of a folder (read_boundary_tokens), and the tokenizer's if it is not
// null. Throws Error for ids that the model does not have.
std::vector<std::int32_t> end_of_text_tokens(const std::filesystem::path& source, const Decoder& decoder,
                                             const text::Tokenizer* tokenizer);

// The tokens that begin and end a text, for the config.json of a model that comes from `source`: a folder, an
// llm.c file or an empty path. They are those of the folder. A tokenizer that is not null
// replaces the end of text by its own, and the beginning too if one token did both. Without a folder and a
// tokenizer, a vocabulary of GPT-2's size means GPT-2's end of text. Otherwise there are none.
BoundaryTokens boundary_tokens(const std::filesystem::path& source, const Decoder& decoder,
                               const text::Tokenizer* tokenizer);

}  // namespace warpwright
