// EncoderTokenizer: one or two texts to the ids and token types that a BERT-family encoder reads.
//
//   const auto tokenizer = text::EncoderTokenizer::load("all-MiniLM-L6-v2/");
//   text::Encoding pair = tokenizer.encode("a question", "an answer", {.max_length = 512});
//   pair.ids;    // [CLS] a question [SEP] an answer [SEP]
//   pair.types;  // 0 up to the first [SEP], then 1
//
// Added tokens, normalization and WordPiece (BERT), or byte-level BPE (RoBERTa), then truncation and the
// template with the special tokens: ids are those of Hugging Face tokenizers 0.23.3. Bytes that are not UTF-8
// are replaced by U+FFFD first, as Python's decoder does with errors="replace".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/bert_normalizer.hpp"
#include "text/tokenizer.hpp"
#include "text/wordpiece.hpp"

namespace warpwright::text {

// The text that loses its end if a sequence, special tokens included, is longer than max_length.
// longest_first: the longer text, then both alike.
enum class Truncation : std::uint8_t { longest_first, only_first, only_second };

struct EncodeOptions {
  std::size_t max_length = 0;  // tokens; 0: no limit
  Truncation truncation = Truncation::longest_first;
  bool add_special_tokens = true;  // those of the template
  SpecialTokens in_text = SpecialTokens::recognize;
};

struct Encoding {
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> types;  // as many
  bool truncated = false;
};

// A piece of the template around one text or two: the place of a text, or special tokens, and a token type.
struct TemplatePiece {
  enum class Kind : std::uint8_t { first, second, special };
  Kind kind = Kind::first;
  std::vector<TokenId> ids;  // of a special piece
  std::uint32_t type = 0;
  bool operator==(const TemplatePiece&) const = default;
};

struct Template {
  std::vector<TemplatePiece> single{{}};
  std::vector<TemplatePiece> pair{{}, {TemplatePiece::Kind::second, {}, 1}};
  bool operator==(const Template&) const = default;
};

// The contents of the files of a tokenizer for encoders.
struct EncoderTokenizerSpec {
  std::optional<TokenizerSpec> bpe;  // byte-level BPE, added tokens included; else WordPiece:
  WordPieceSpec wordpiece;
  std::optional<BertNormalizer::Options> normalizer = BertNormalizer::Options{};
  bool pretokenize = true;  // false: what is between added tokens is one word
  std::vector<AddedToken> added;
  Template post;
};

// The numbers of tokens of two texts. truncate() returns those that are kept if there is room for `room`
// tokens in all. For a single text second = 0 and pair = false.
struct Lengths {
  std::size_t first = 0, second = 0;
  bool operator==(const Lengths&) const = default;
};
// Throws Error if the strategy does not work: the text to shorten would be left without a token (although
// room > 0), or there is no second text.
Lengths truncate(Lengths lengths, bool pair, std::size_t room, Truncation truncation);

class EncoderTokenizer {
 public:
  // Throws Error naming `where` for a spec that contradicts itself.
  explicit EncoderTokenizer(EncoderTokenizerSpec spec, const std::string& where = "tokenizer");
  EncoderTokenizer(EncoderTokenizer&&) noexcept;
  EncoderTokenizer& operator=(EncoderTokenizer&&) noexcept;
  ~EncoderTokenizer();

  // Reads tokenizer.json; where that is missing vocab.txt with tokenizer_config.json (do_lower_case,
  // strip_accents, tokenize_chinese_chars and the special tokens' names), or RoBERTa's vocab.json and
  // merges.txt. Anything in the files that this class does not do is an Error that names the field;
  // truncation and padding in tokenizer.json are not read, since the caller's options and packed batches
  // stand in their place.
  static EncoderTokenizer load(const std::filesystem::path& directory);

  // Safe to call from several threads at once. Throws Error where truncate() does.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;

  // Every id is below this.
  std::size_t vocab_size() const { return vocab_size_; }
  // Every token type is below this.
  std::uint32_t type_count() const { return type_count_; }
  // Special tokens around one text or two.
  std::size_t special_tokens(bool pair) const;
  // True if text is lowercased, so that case makes no difference.
  bool lowercases() const;

 private:
  struct Scratch;

  void encode_text(std::string_view text, SpecialTokens special, std::size_t most,
                   std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, std::size_t most, Scratch& scratch,
                    std::vector<TokenId>& ids) const;
  void encode_normalized(std::string_view text, SpecialTokens special, std::size_t most, Scratch& scratch,
                         std::vector<TokenId>& ids) const;

  std::optional<Tokenizer> bpe_;
  std::optional<WordPiece> wordpiece_;
  std::optional<BertNormalizer> normalizer_;
  bool pretokenize_ = true;
  std::vector<AddedToken> added_;             // matched in the text as it stands
  std::vector<AddedToken> normalized_added_;  // matched in the normalized text, contents normalized
  AddedTokenMatcher matcher_, normalized_matcher_;
  Template post_;
  std::size_t vocab_size_ = 0;
  std::uint32_t type_count_ = 1;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

}  // namespace warpwright::text
