#include "text/tokenizer_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "runtime/json_clearer.hpp"
#include "text/byte_alphabet.hpp"
#include "text/json.hpp"
#include "text/json_field.hpp"
#include "text/keyed_hash.hpp"
#include "text/tokenizer_steps.hpp"

namespace warpwright::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr const char* kRemedy = "use the files of a BPE tokenizer such as GPT-2's, Llama's or Qwen's";

using Ids = std::unordered_map<std::string, TokenId, KeyedHash>;  // from a token's spelling in the file

AddedToken read_added_token(const JsonField& field) {
  field.require_object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token = read_added_token_flags(field);
  token.id = field.member("id").id();
  return token;
}

Ids read_vocab(const JsonField& field) {
  if (!field.value().is_object()) field.fail("is not an object");
  Ids ids;
  ids.reserve(field.value().size());
  for (const auto& [token, id] : field.value().get_ref<const json::object_t&>()) {
    if (!JsonField::is_id(id)) field.foreign_member(token).id();  // throws and names the place
    ids.emplace(token, id.get<TokenId>());
  }
  return ids;
}

// Adds the added tokens to the ids. If the model also has a token, both must give it the same id.
void join_added_tokens(std::vector<AddedToken>& added, Ids& ids, const std::string& where) {
  for (AddedToken& token : added) {
    const auto [known, is_new] = ids.emplace(token.content, token.id);
    token.in_model = !is_new;
    if (!is_new && known->second != token.id) {
      throw Error(fmt::format("added token {} has id {}, in the vocabulary it has {}", quote(token.content),
                              token.id, known->second),
                  where, kRemedy);
    }
  }
}

// Hugging Face numbers the added tokens that the vocabulary lacks by itself: from the number of its tokens.
// If ids have no token, these are other ids than the file's.
void check_added_ids(const std::vector<AddedToken>& added, const std::string& where) {
  for (const AddedToken& token : added) {
    if (token.in_model) continue;
    throw Error(fmt::format("added token {} is not in model.vocab, and some ids have no token: its id {} "
                            "would not be kept by Hugging Face",
                            quote(token.content), token.id),
                where, "add it to model.vocab with its id");
  }
}

// The tokens of a spec. An id may have no token, but not most of them. Unless they are spelled in characters,
// the model's tokens must be spelled in the alphabet.
std::vector<std::string> order_tokens(const Ids& ids, const std::vector<AddedToken>& added, bool characters,
                                      const std::string& where) {
  std::vector<const std::string*> spelled;
  for (const auto& [token, id] : ids) {
    if (id >= 2 * ids.size()) {
      throw Error(fmt::format("{} has id {}, but there are {} tokens: most ids would have none", quote(token),
                              id, ids.size()),
                  where, kRemedy);
    }
    if (id >= spelled.size()) spelled.resize(id + 1, nullptr);
    if (spelled[id]) {
      throw Error(fmt::format("{} and {} have the same id {}", quote(*spelled[id]), quote(token), id), where,
                  kRemedy);
    }
    spelled[id] = &token;
  }
  if (spelled.size() > ids.size()) check_added_ids(added, where);
  std::vector<std::string> tokens(spelled.size());
  for (const AddedToken& token : added) tokens[token.id] = token.content;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty() || !spelled[id]) continue;
    if (characters && !spelled[id]->empty()) {
      tokens[id] = *spelled[id];
      continue;
    }
    std::optional<std::string> bytes = unspell_bytes(*spelled[id]);
    if (!bytes || bytes->empty()) {
      throw Error(fmt::format("token {} ({}) is {}", id, quote(*spelled[id]),
                              characters ? "empty" : "not spelled in the byte-level alphabet"),
                  where, kRemedy);
    }
    tokens[id] = std::move(*bytes);
  }
  return tokens;
}

AddedToken end_of_text_token(TokenId id) {
  AddedToken token;
  token.content = kEndOfText;
  token.id = id;
  token.special = true;
  return token;
}

// Looks up the two halves of merge number `index`.
MergePair find_pair(const Ids& ids, const std::string& left, const std::string& right, std::size_t index,
                    const std::string& where) {
  const auto find = [&](const std::string& token) {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      throw Error(fmt::format("merge {} uses {}, which is not in the vocabulary", index, quote(token)), where,
                  kRemedy);
    }
    return found->second;
  };
  return {find(left), find(right)};
}

// Splits "a b". Returns false unless the line is two words with one space between them.
bool split_merge(const std::string& line, std::string& left, std::string& right) {
  const std::size_t space = line.find(' ');
  if (space == 0 || space == std::string::npos || space + 1 == line.size()) return false;
  left = line.substr(0, space);
  right = line.substr(space + 1);
  return right.find(' ') == std::string::npos;
}

std::vector<MergePair> read_merges(const JsonField& field, const Ids& ids, const std::string& where) {
  field.require_array();
  std::vector<MergePair> merges;
  merges.reserve(field.value().size());
  std::string left, right;
  for (std::size_t i = 0; i < field.value().size(); ++i) {
    const json& merge = field.value()[i];
    const bool is_pair =
        merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (is_pair) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else if (!merge.is_string() || !split_merge(merge.get_ref<const std::string&>(), left, right)) {
      field.element(i).fail("is neither \"a b\" nor [\"a\", \"b\"]");
    }
    merges.push_back(find_pair(ids, left, right, i, where));
  }
  return merges;
}

// unk_token, fuse_unk and byte_fallback only affect bytes without a token. The Tokenizer's constructor
// requires a token for each byte, so any value of theirs is accepted.
void require_plain_bpe(const JsonField& model) {
  model.require_object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!model.member("type").value().is_null()) model.require_type("BPE");
  const json& dropout = model.member("dropout").value();
  if (!dropout.is_null() && dropout != 0) model.member("dropout").fail("is not null or 0, and not supported");
  if (!model.member("unk_token").value().is_null()) model.member("unk_token").string();
  model.member("continuing_subword_prefix").require_empty();
  model.member("end_of_word_suffix").require_empty();
  model.member("fuse_unk").boolean_or(false);
  model.member("byte_fallback").boolean_or(false);
}

void append_line(std::string& text, std::string_view a, std::string_view b) {
  text.append(a).append(1, ' ').append(b).append(1, '\n');
}

// The tokens of the model's vocabulary.
ordered_json vocab_object(const TokenizerSpec& spec, const std::vector<std::string>& spelled) {
  std::vector<std::uint8_t> in_model(spelled.size(), 1);
  for (const AddedToken& token : spec.added) in_model[token.id] = token.in_model;
  ordered_json::object_t members;
  members.reserve(spelled.size());
  // emplace_back, because this map's insert searches all its members.
  for (std::size_t id = 0; id < spelled.size(); ++id) {
    if (in_model[id] && !spelled[id].empty()) members.emplace_back(spelled[id], id);
  }
  return ordered_json(std::move(members));
}

// The added token that begins a text. No other token is named, since transformers would make it special.
std::string begin_of_text(const TokenizerSpec& spec) {
  if (spec.before.empty()) return spec.end_of_text;
  const auto found = std::find_if(spec.added.begin(), spec.added.end(),
                                  [&](const AddedToken& token) { return token.id == spec.before.front(); });
  return found == spec.added.end() ? "" : found->content;
}

}  // namespace

AddedToken read_added_token_flags(const JsonField& field) {
  AddedToken token;
  token.content = field.member("content").string();
  token.special = field.member("special").boolean_or(false);
  token.single_word = field.member("single_word").boolean_or(false);
  token.lstrip = field.member("lstrip").boolean_or(false);
  token.rstrip = field.member("rstrip").boolean_or(false);
  token.normalized = field.member("normalized").boolean_or(true);
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonField& field) {
  std::vector<AddedToken> tokens;
  if (field.value().is_null()) return tokens;
  field.require_array();
  for (std::size_t i = 0; i < field.value().size(); ++i) tokens.push_back(read_added_token(field.element(i)));
  return tokens;
}

TokenizerSpec parse_tokenizer_json(std::string_view document, const std::string& where) {
  json parsed = parse_json(document, where, kMaxJsonDepth);
  const JsonClearer clearer(parsed);
  return read_tokenizer_json(parsed, where);
}

TokenizerSpec read_tokenizer_json(const json& parsed, const std::string& where) {
  const JsonField root(parsed, "", where, kRemedy);
  root.require_object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  if (root.member("version").string() != "1.0") root.member("version").fail("is not \"1.0\"");
  for (const char* unsupported : {"truncation", "padding"}) root.member(unsupported).require_null();
  TokenizerSpec spec;
  read_steps(root, spec);
  const JsonField model = root.member("model");
  require_plain_bpe(model);
  if (spec.characters && !model.member("byte_fallback").boolean_or(false)) {
    model.member("byte_fallback").fail("is not true, and the pre_tokenizer has no ByteLevel");
  }
  spec.ignore_merges = model.member("ignore_merges").boolean_or(false);
  Ids ids = read_vocab(model.member("vocab"));
  spec.merges = read_merges(model.member("merges"), ids, where);
  spec.added = read_added_tokens(root.member("added_tokens"));
  join_added_tokens(spec.added, ids, where);
  spec.tokens = order_tokens(ids, spec.added, spec.characters.has_value(), where);
  return spec;
}

void require_no_nul(std::string_view content, const std::string& where) {
  const std::size_t nul = content.find('\0');
  if (nul == std::string_view::npos) return;
  throw Error(fmt::format("is not text: byte {} is a NUL", nul), where,
              "check that the file is complete and was written by a tokenizer program");
}

TokenizerSpec parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_where,
                                     std::string_view merges, const std::string& merges_where) {
  json parsed = parse_json(vocab, vocab_where, kMaxJsonDepth);
  const JsonClearer clearer(parsed);
  const Ids ids = read_vocab(JsonField(parsed, "", vocab_where, kRemedy));
  TokenizerSpec spec;
  if (const auto eos = ids.find(kEndOfText); eos != ids.end()) {
    spec.added.push_back(end_of_text_token(eos->second));
  }
  spec.tokens = order_tokens(ids, spec.added, false, vocab_where);
  require_no_nul(merges, merges_where);
  for (std::size_t begin = 0, number = 1; begin < merges.size(); ++number) {
    const std::size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string line(merges.substr(begin, end - begin));
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with("#version")) continue;
    std::string left, right;
    if (!split_merge(line, left, right)) {
      throw Error(fmt::format("line {} is not two tokens with a space between", number), merges_where,
                  kRemedy);
    }
    spec.merges.push_back(find_pair(ids, left, right, spec.merges.size(), merges_where));
  }
  return spec;
}

std::vector<std::string> spell_tokens(const TokenizerSpec& spec) {
  std::vector<std::string> spelled(spec.tokens.size());
  for (const AddedToken& token : spec.added) spelled[token.id] = token.content;
  for (std::size_t id = 0; id < spelled.size(); ++id) {
    if (spelled[id].empty()) spelled[id] = spec.characters ? spec.tokens[id] : spell_bytes(spec.tokens[id]);
  }
  return spelled;
}

bool is_vocab_and_merges(const TokenizerSpec& spec) {
  const bool gpt2_rules = spec.normalizer.empty() && spec.patterns.empty() && !spec.characters &&
                          spec.before.empty() && spec.after.empty() && spec.use_regex && !spec.ignore_merges;
  const auto is_known = [](const AddedToken& token) { return token == end_of_text_token(token.id); };
  const auto ends = std::count(spec.tokens.begin(), spec.tokens.end(), kEndOfText);
  return gpt2_rules && std::all_of(spec.added.begin(), spec.added.end(), is_known) &&
         spec.added.size() == static_cast<std::size_t>(ends);
}

std::string format_tokenizer_json(const TokenizerSpec& spec) {
  const std::vector<std::string> spelled = spell_tokens(spec);
  ordered_json added = ordered_json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  ordered_json merges = ordered_json::array();
  for (const MergePair& pair : spec.merges) merges.push_back({spelled[pair.left], spelled[pair.right]});
  const ordered_json document = {{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", std::move(added)},
                                 {"normalizer", format_normalizer(spec)},
                                 {"pre_tokenizer", format_pre_tokenizer(spec)},
                                 {"post_processor", format_post_processor(spec)},
                                 {"decoder", format_decoder(spec)},
                                 {"model",
                                  {{"type", "BPE"},
                                   {"dropout", nullptr},
                                   {"unk_token", nullptr},
                                   {"continuing_subword_prefix", nullptr},
                                   {"end_of_word_suffix", nullptr},
                                   {"fuse_unk", false},
                                   {"byte_fallback", spec.characters.has_value()},
                                   {"ignore_merges", spec.ignore_merges},
                                   {"vocab", vocab_object(spec, spelled)},
                                   {"merges", std::move(merges)}}}};
  return document.dump(1) + "\n";
}

std::string format_vocab(const TokenizerSpec& spec) {
  return vocab_object(spec, spell_tokens(spec)).dump() + "\n";
}

std::string format_merges(const TokenizerSpec& spec) {
  const std::vector<std::string> spelled = spell_tokens(spec);
  std::string text = "#version: 0.2\n";
  for (const MergePair& pair : spec.merges) append_line(text, spelled[pair.left], spelled[pair.right]);
  return text;
}

std::string format_tokenizer_config(const TokenizerSpec& spec) {
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"add_prefix_space", spec.add_prefix_space},
                         {"clean_up_tokenization_spaces", false}};
  const std::string bos = begin_of_text(spec);
  for (const auto& [role, token] : {std::pair("bos_token", &bos), {"eos_token", &spec.end_of_text}}) {
    if (!token->empty()) config[role] = *token;
  }
  return config.dump(1) + "\n";
}

}  // namespace warpwright::text
