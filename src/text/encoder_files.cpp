#include "text/encoder_files.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json_clearer.hpp"
#include "text/json.hpp"
#include "text/json_field.hpp"
#include "text/keyed_hash.hpp"
#include "text/tokenizer_config.hpp"
#include "text/tokenizer_json.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestFile = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostWordChars = 1000;  // encoding a word takes up to quadratic time
constexpr const char* kRemedy = "use the tokenizer files of a BERT or RoBERTa model";

using Vocabulary = std::unordered_map<std::string_view, TokenId, KeyedHash>;

std::optional<BertNormalizer::Options> read_normalizer(const JsonField& field) {
  if (field.value().is_null()) return std::nullopt;
  field.require_object({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"})
      .require_type("BertNormalizer");
  BertNormalizer::Options options;
  options.clean_text = field.member("clean_text").boolean();
  options.handle_chinese_chars = field.member("handle_chinese_chars").boolean();
  options.lowercase = field.member("lowercase").boolean();
  options.strip_accents = field.member("strip_accents").boolean_or(options.lowercase);
  return options;
}

WordPieceSpec read_wordpiece(const JsonField& model) {
  model.require_object(
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceSpec spec;
  spec.unknown = model.member("unk_token").string();
  spec.continuing_prefix = model.member("continuing_subword_prefix").string();
  const JsonField most = model.member("max_input_chars_per_word");
  if (!most.value().is_number_unsigned() || most.value().get<std::uint64_t>() > kMostWordChars) {
    most.fail(fmt::format("is not a number of characters up to {}", kMostWordChars));
  }
  spec.most_chars = most.value().get<std::uint64_t>();
  const JsonField vocab = model.member("vocab");
  if (!vocab.value().is_object()) vocab.fail("is not an object");
  for (const auto& [token, id] : vocab.value().get_ref<const json::object_t&>()) {
    if (!JsonField::is_id(id)) vocab.foreign_member(token).id();  // throws and names the place
    spec.vocabulary.push_back({token, id.get<TokenId>()});
  }
  return spec;
}

// WordPiece finds the last of equal tokens, and so does this map.
Vocabulary index_vocabulary(const std::vector<VocabularyEntry>& entries) {
  Vocabulary vocabulary;
  vocabulary.reserve(entries.size());
  for (const VocabularyEntry& entry : entries) vocabulary.insert_or_assign(entry.token, entry.id);
  return vocabulary;
}

// If the vocabulary also has an added token, both must give it the same id.
void check_added_tokens(const EncoderTokenizerSpec& spec, const std::string& where) {
  const Vocabulary vocabulary = index_vocabulary(spec.wordpiece.vocabulary);
  for (const AddedToken& token : spec.added) {
    const auto known = vocabulary.find(token.content);
    if (known != vocabulary.end() && known->second != token.id) {
      throw Error(fmt::format("added token {} has id {}, in the vocabulary it has {}", quote(token.content),
                              token.id, known->second),
                  where, kRemedy);
    }
  }
}

// Adds the vocabulary's special tokens of these names to the tokens listed in the configuration. Returns the
// ids of the first two, which the vocabulary must have.
std::pair<TokenId, TokenId> add_special_tokens(const Vocabulary& vocabulary,
                                               const std::vector<std::string>& names,
                                               std::vector<AddedToken>& added, const std::string& where) {
  TokenId ids[2] = {0, 0};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = vocabulary.find(names[i]);
    if (found == vocabulary.end()) {
      if (i < 2) throw Error(fmt::format("the vocabulary lacks {}", quote(names[i])), where, kRemedy);
      continue;
    }
    if (i < 2) ids[i] = found->second;
    const auto same = [&](const AddedToken& token) { return token.content == names[i]; };
    if (std::any_of(added.begin(), added.end(), same)) continue;
    AddedToken token;
    token.content = names[i];
    token.id = found->second;
    token.special = true;
    added.push_back(std::move(token));
  }
  return {ids[0], ids[1]};
}

}  // namespace

EncoderTokenizerSpec parse_encoder_json(std::string_view document, const std::string& where) {
  json parsed = parse_json(document, where, kMaxJsonDepth);
  const JsonClearer clearer(parsed);
  EncoderTokenizerSpec spec;
  {
    const JsonField root(parsed, "", where, kRemedy);
    root.require_object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                         "post_processor", "decoder", "model"});
    read_post_processor(root.member("post_processor"), spec.post);
    const JsonField model = root.member("model");
    const bool is_bpe = model.value().is_object() &&
                        (model.member("type").value() == "BPE" || !model.member("merges").value().is_null());
    if (!is_bpe) {
      if (root.member("version").string() != "1.0") root.member("version").fail("is not \"1.0\"");
      if (!model.value().is_object()) model.fail("is not an object");
      if (!model.member("type").value().is_null()) model.require_type("WordPiece");
      spec.wordpiece = read_wordpiece(model);
      spec.normalizer = read_normalizer(root.member("normalizer"));
      const JsonField pretokenizer = root.member("pre_tokenizer");
      spec.pretokenize = !pretokenizer.value().is_null();
      if (spec.pretokenize) pretokenizer.require_object({"type"}).require_type("BertPreTokenizer");
      spec.added = read_added_tokens(root.member("added_tokens"));
      check_added_tokens(spec, where);
      return spec;
    }
  }
  for (const char* read_or_without_meaning : {"post_processor", "truncation", "padding"}) {
    parsed[read_or_without_meaning] = nullptr;
  }
  spec.bpe = read_tokenizer_json(parsed, where);
  return spec;
}

EncoderTokenizerSpec parse_bert_vocab(std::string_view vocab, const std::string& vocab_where,
                                      std::string_view config, const std::string& config_where) {
  EncoderTokenizerSpec spec;
  require_no_nul(vocab, vocab_where);
  TokenId number = 0;
  for (std::size_t begin = 0; begin < vocab.size(); ++number) {
    const std::size_t end = std::min(vocab.find('\n', begin), vocab.size());
    std::string_view line = vocab.substr(begin, end - begin);
    if (!is_utf8(line)) throw Error(fmt::format("line {} is not UTF-8", number + 1), vocab_where, kRemedy);
    line.remove_suffix(trailing_space(line));
    spec.wordpiece.vocabulary.push_back({std::string(line), number});
    begin = end + 1;
  }
  const TokenizerConfig options(config, config_where, kRemedy);
  spec.normalizer->lowercase = options.flag("do_lower_case", true);
  spec.normalizer->strip_accents = options.flag("strip_accents", spec.normalizer->lowercase);
  spec.normalizer->handle_chinese_chars = options.flag("tokenize_chinese_chars", true);
  spec.wordpiece.unknown = options.token("unk_token").value_or("[UNK]");
  spec.added = options.added_tokens();
  const auto [cls, sep] = add_special_tokens(
      index_vocabulary(spec.wordpiece.vocabulary),
      {options.token("cls_token").value_or("[CLS]"), options.token("sep_token").value_or("[SEP]"),
       spec.wordpiece.unknown, options.token("pad_token").value_or("[PAD]"),
       options.token("mask_token").value_or("[MASK]")},
      spec.added, vocab_where);
  spec.post = bert_template(cls, sep);
  check_added_tokens(spec, config_where);
  return spec;
}

EncoderTokenizerSpec parse_roberta_files(std::string_view vocab, const std::string& vocab_where,
                                         std::string_view merges, const std::string& merges_where,
                                         std::string_view config, const std::string& config_where) {
  EncoderTokenizerSpec spec;
  spec.bpe = parse_vocab_and_merges(vocab, vocab_where, merges, merges_where);
  const TokenizerConfig options(config, config_where, kRemedy);
  options.complete(*spec.bpe);
  Vocabulary vocabulary;
  for (std::size_t id = 0; id < spec.bpe->tokens.size(); ++id) {
    vocabulary.emplace(spec.bpe->tokens[id], static_cast<TokenId>(id));
  }
  const std::string mask = options.token("mask_token").value_or("<mask>");
  const std::size_t first_unlisted = spec.bpe->added.size();
  const auto [cls, sep] = add_special_tokens(
      vocabulary,
      {options.token("cls_token").value_or("<s>"), options.token("sep_token").value_or("</s>"),
       options.token("unk_token").value_or("<unk>"), options.token("pad_token").value_or("<pad>"), mask},
      spec.bpe->added, vocab_where);
  for (std::size_t i = first_unlisted; i < spec.bpe->added.size(); ++i) {
    // It replaces a word together with its space.
    spec.bpe->added[i].lstrip = spec.bpe->added[i].content == mask;
  }
  spec.post = roberta_template(cls, sep);
  return spec;
}

EncoderTokenizer EncoderTokenizer::load(const fs::path& directory) {
  const fs::path whole = directory / "tokenizer.json";
  const fs::path words = directory / "vocab.txt";
  const fs::path vocab = directory / "vocab.json";
  const fs::path merges = directory / "merges.txt";
  const fs::path config = directory / "tokenizer_config.json";
  if (path_exists(whole)) {
    return EncoderTokenizer(parse_encoder_json(read_file(whole, kLargestFile), whole.string()),
                            whole.string());
  }
  if (path_exists(directory / "added_tokens.json")) {
    throw Error("is not supported", (directory / "added_tokens.json").string(),
                "save the tokenizer with tokenizer.json, or remove the file");
  }
  const std::string options = path_exists(config) ? read_file(config, kLargestFile) : "";
  if (path_exists(words)) {
    return EncoderTokenizer(
        parse_bert_vocab(read_file(words, kLargestFile), words.string(), options, config.string()),
        words.string());
  }
  if (path_exists(vocab) && path_exists(merges)) {
    return EncoderTokenizer(
        parse_roberta_files(read_file(vocab, kLargestFile), vocab.string(), read_file(merges, kLargestFile),
                            merges.string(), options, config.string()),
        vocab.string());
  }
  throw Error("holds neither tokenizer.json, nor vocab.txt, nor both vocab.json and merges.txt",
              directory.string(), "name the folder of a BERT or RoBERTa model");
}

bool has_encoder_tokenizer(const fs::path& folder) {
  const auto there = [&](const char* name) { return path_exists(folder / name); };
  return there("tokenizer.json") || there("vocab.txt") || there("vocab.json");
}

}  // namespace warpwright::text
