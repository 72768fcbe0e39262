// Converts between the texts of tokenizer files and TokenizerSpec. Every input is hostile. An Error names the
// file and the field. Tokenizer's constructor checks the spec.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace warpwright::text {

class JsonField;

inline constexpr int kMaxJsonDepth = 16;

// Parses a tokenizer.json of Hugging Face tokenizers, version "1.0", whose model is BPE. tokenizer_steps.hpp
// reads the steps around the model. A merge may be "a b" or ["a", "b"].
TokenizerSpec parse_tokenizer_json(std::string_view document, const std::string& where);
TokenizerSpec read_tokenizer_json(const nlohmann::json& parsed, const std::string& where);

// The "added_tokens" of any tokenizer.json. Empty if the field is null.
std::vector<AddedToken> read_added_tokens(const JsonField& field);
// One added token, without its id.
AddedToken read_added_token_flags(const JsonField& field);

// Parses GPT-2's pair of files. If the vocabulary has "<|endoftext|>", it becomes a special token.
// TokenizerConfig::complete() adds what the pair does not say.
TokenizerSpec parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_where,
                                     std::string_view merges, const std::string& merges_where);

// Throws Error if a file of lines holds a NUL byte, since it is then no vocabulary.
void require_no_nul(std::string_view content, const std::string& where);

// Tokens as files spell them: added tokens verbatim, the others in the byte alphabet.
std::vector<std::string> spell_tokens(const TokenizerSpec& spec);

// True if that pair and tokenizer_config.json say everything that the spec does.
bool is_vocab_and_merges(const TokenizerSpec& spec);

std::string format_tokenizer_json(const TokenizerSpec& spec);
std::string format_vocab(const TokenizerSpec& spec);
std::string format_merges(const TokenizerSpec& spec);
std::string format_tokenizer_config(const TokenizerSpec& spec);  // names the end-of-text token

}  // namespace warpwright::text
