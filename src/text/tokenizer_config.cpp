#include "text/tokenizer_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "text/json.hpp"
#include "text/tokenizer_json.hpp"

namespace warpwright::text {

using nlohmann::json;

TokenizerConfig::TokenizerConfig(std::string_view document, const std::string& where, const char* remedy)
    : parsed_(document.empty() ? json::object() : parse_json(document, where, kMaxJsonDepth)),
      root_(parsed_, "", where, remedy) {
  if (!parsed_.is_object()) root_.fail("is not an object");
}

std::optional<std::string> TokenizerConfig::token(const std::string& name) const {
  const JsonField field = root_.member(name);
  if (field.value().is_null()) return std::nullopt;
  return field.value().is_object() ? field.member("content").string() : field.string();
}

std::vector<AddedToken> TokenizerConfig::added_tokens() const {
  std::vector<AddedToken> tokens;
  const JsonField added = root_.member("added_tokens_decoder");
  if (added.value().is_null()) return tokens;
  if (!added.value().is_object()) added.fail("is not an object");
  for (const auto& [key, value] : added.value().items()) {
    const JsonField field = added.foreign_member(key);
    field.require_object({"content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = read_added_token_flags(field);
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, token.id);
    if (error != std::errc() || stop != end || token.id > 0x7fffffff) {
      field.fail("is not under an id below 2^31");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void TokenizerConfig::complete(TokenizerSpec& spec) const {
  spec.add_prefix_space = flag("add_prefix_space", false);
  std::vector<AddedToken> listed = added_tokens();
  std::unordered_set<TokenId> listed_ids;
  for (const AddedToken& token : listed) {
    if (token.id >= spec.tokens.size() || spec.tokens[token.id] != token.content) {
      root_.member("added_tokens_decoder")
          .fail(fmt::format("has {} as id {}, which is not its place in the vocabulary", quote(token.content),
                            token.id));
    }
    listed_ids.insert(token.id);
  }
  std::erase_if(spec.added, [&](const AddedToken& known) { return listed_ids.contains(known.id); });
  std::move(listed.begin(), listed.end(), std::back_inserter(spec.added));
}

}  // namespace warpwright::text
