// A tokenizer's fingerprint: checksums of everything that decides its ids, independent of the layout of its
// files. Two tokenizers with equal fingerprints give equal ids for every text.
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
  std::string added_tokens;  // their ids, contents and flags, sorted by id
  std::string rules;         // prefix space, regular expression, ignored merges, end of text
  bool operator==(const TokenizerFingerprint&) const = default;
};

TokenizerFingerprint fingerprint_of(const Tokenizer& tokenizer);
// The fingerprint of the tokenizer in a folder. Empty if the folder has no tokenizer files.
std::optional<TokenizerFingerprint> fingerprint_in(const std::filesystem::path& folder);

// Names the differences: "the vocabulary (300 tokens, now 512) and the merges". Empty if they are equal.
std::string difference(const TokenizerFingerprint& before, const TokenizerFingerprint& now);

nlohmann::json to_json(const TokenizerFingerprint& fingerprint);
// Throws nlohmann::json::exception if a field is missing or has another type.
TokenizerFingerprint tokenizer_fingerprint(const nlohmann::json& json);

}  // namespace warpwright::text
