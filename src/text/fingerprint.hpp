// A tokenizer's fingerprint: checksums of what decides its ids, in a form that does not depend on its files.
// Two tokenizers with equal fingerprints give equal ids for every text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "text/tokenizer.hpp"

namespace warpwright::text {

struct TokenizerFingerprint {
  std::int64_t vocabulary_size = 0;
  std::string vocabulary;    // the bytes of each id
  std::string merges;        // the pairs of ids by rank
  std::string added_tokens;  // their ids, contents and flags, by id
  std::string rules;         // prefix space, regular expression, ignored merges, end of text
  bool operator==(const TokenizerFingerprint&) const = default;
};

TokenizerFingerprint fingerprint_of(const Tokenizer& tokenizer);
// Of the tokenizer in a folder; nothing if the folder has no tokenizer's files.
std::optional<TokenizerFingerprint> fingerprint_in(const std::filesystem::path& folder);

// Names the differences: "the vocabulary (300 tokens, now 512) and the merges"; empty if they are equal.
std::string difference(const TokenizerFingerprint& before, const TokenizerFingerprint& now);

nlohmann::json to_json(const TokenizerFingerprint& fingerprint);
// Throws a nlohmann::json::exception for a field that is missing or of another type.
TokenizerFingerprint tokenizer_fingerprint(const nlohmann::json& json);

}  // namespace warpwright::text
