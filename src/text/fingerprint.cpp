#include "text/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/file.hpp"

namespace warpwright::text {
namespace {

namespace fs = std::filesystem;

// The bytes to be hashed: numbers as decimals, texts with their lengths. So two different lists of values
// never give the same bytes.
class Canonical {
 public:
  void add(std::uint64_t number) { bytes_ += fmt::format("{};", number); }
  void add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }
  std::string checksum() const { return checksum_of(std::as_bytes(std::span(bytes_))); }

 private:
  std::string bytes_;
};

// A token that the model lacks is marked only if that matters. So fingerprints of other tokenizers, from
// before there was a mark, remain valid.
std::string checksum_of_added(const Tokenizer& tokenizer) {
  std::vector<AddedToken> added = tokenizer.spec().added;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  Canonical bytes;
  for (const AddedToken& token : added) {
    bytes.add(token.id);
    bytes.add(token.content);
    for (const bool flag : {token.special, token.single_word, token.lstrip, token.rstrip, token.normalized}) {
      bytes.add(std::uint64_t{flag});
    }
    if (tokenizer.model_lacks(token)) bytes.add("not in the model");
  }
  return bytes.checksum();
}

// Adds the rules that GPT-2's tokenizer does not have. Nothing is added for one without them, so that
// fingerprints from before there were any remain valid.
void add_further_rules(const TokenizerSpec& spec, Canonical& rules) {
  for (const NormalizerStep& step : spec.normalizer) {
    rules.add("normalizer");
    rules.add(static_cast<std::uint64_t>(step.kind));
    rules.add(step.from);
    rules.add(step.to);
  }
  for (const Cut& cut : spec.patterns) {
    if (const Pattern* known = std::get_if<Pattern>(&cut)) {
      rules.add("pattern");
      rules.add(static_cast<std::uint64_t>(*known));
    } else {
      rules.add("expression");
      rules.add(std::get<SplitExpression>(cut).expression());
    }
  }
  for (const auto& [name, ids] : {std::pair("before", &spec.before), {"after", &spec.after}}) {
    for (const TokenId id : *ids) {
      rules.add(name);
      rules.add(id);
    }
  }
  if (!spec.characters) return;
  rules.add("characters");
  rules.add(spec.characters->mark);
  rules.add(static_cast<std::uint64_t>(spec.characters->first_space));
  if (!spec.characters->metaspace) return;
  rules.add("metaspace");
  rules.add(static_cast<std::uint64_t>(spec.characters->metaspace->prepend));
  rules.add(std::uint64_t{spec.characters->metaspace->split});
}

}  // namespace

TokenizerFingerprint fingerprint_of(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  Canonical vocabulary, merges, rules;
  for (const std::string& token : spec.tokens) vocabulary.add(token);
  for (const MergePair& pair : spec.merges) {
    merges.add(pair.left);
    merges.add(pair.right);
  }
  for (const bool flag : {spec.add_prefix_space, spec.use_regex, spec.ignore_merges}) {
    rules.add(std::uint64_t{flag});
  }
  rules.add(spec.end_of_text);
  add_further_rules(spec, rules);
  return {static_cast<std::int64_t>(spec.tokens.size()), vocabulary.checksum(), merges.checksum(),
          checksum_of_added(tokenizer), rules.checksum()};
}

std::optional<TokenizerFingerprint> fingerprint_in(const fs::path& folder) {
  if (!has_tokenizer(folder)) return std::nullopt;
  return fingerprint_of(Tokenizer::load(folder));
}

std::string difference(const TokenizerFingerprint& before, const TokenizerFingerprint& now) {
  std::vector<std::string> parts;
  if (before.vocabulary_size != now.vocabulary_size) {
    parts.push_back(
        fmt::format("the vocabulary ({} tokens, now {})", before.vocabulary_size, now.vocabulary_size));
  } else if (before.vocabulary != now.vocabulary) {
    parts.emplace_back("the vocabulary");
  }
  if (before.merges != now.merges) parts.emplace_back("the merges");
  if (before.added_tokens != now.added_tokens) parts.emplace_back("the added tokens");
  if (before.rules != now.rules) parts.emplace_back("the rules for cutting text");
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

nlohmann::json to_json(const TokenizerFingerprint& f) {
  return {{"vocabulary_size", f.vocabulary_size},
          {"vocabulary", f.vocabulary},
          {"merges", f.merges},
          {"added_tokens", f.added_tokens},
          {"rules", f.rules}};
}

TokenizerFingerprint tokenizer_fingerprint(const nlohmann::json& json) {
  return {json.at("vocabulary_size").get<std::int64_t>(), json.at("vocabulary").get<std::string>(),
          json.at("merges").get<std::string>(), json.at("added_tokens").get<std::string>(),
          json.at("rules").get<std::string>()};
}

}  // namespace warpwright::text
