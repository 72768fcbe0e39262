// tokenizer_config.json. If there is no tokenizer.json, it has the fields that decide ids.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/json_clearer.hpp"
#include "text/json_field.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::text {

class TokenizerConfig {
 public:
  // An empty document means that there is no file. Every error names `where`, which must outlive this object,
  // and ends with `remedy`.
  TokenizerConfig(std::string_view document, const std::string& where, const char* remedy);
  TokenizerConfig(const TokenizerConfig&) = delete;
  TokenizerConfig& operator=(const TokenizerConfig&) = delete;

  bool flag(const std::string& name, bool missing) const { return root_.member(name).boolean_or(missing); }

  // The content of a special token. It may be a string or an object.
  std::optional<std::string> token(const std::string& name) const;

  // The tokens of "added_tokens_decoder".
  std::vector<AddedToken> added_tokens() const;

  // Adds to a spec from vocab.json and merges.txt what only this file says: add_prefix_space and the added
  // tokens, which the vocabulary must have.
  void complete(TokenizerSpec& spec) const;

 private:
  nlohmann::json parsed_;
  JsonClearer clearer_{parsed_};
  JsonField root_;
};

}  // namespace warpwright::text
