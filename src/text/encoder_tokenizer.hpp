// EncoderTokenizer: turns one or two texts into the ids and token types that a BERT-family encoder reads.
//
//   const auto tokenizer = text::EncoderTokenizer::load("all-MiniLM-L6-v2/");
//   text::Encoding pair = tokenizer.encode("a question", "an answer", {.max_length = 512});
//   pair.ids;    // [CLS] a question [SEP] an answer [SEP]
//   pair.types;  // 0 up to the first [SEP], then 1
//
// The steps are: added tokens, normalization and WordPiece (BERT) or byte-level BPE (RoBERTa), truncation,
// and the template with the special tokens. The ids are those of Hugging Face tokenizers 0.23.3. Bytes that
// are not UTF-8 are first replaced by U+FFFD, as Python's decoder does with errors="replace".
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
#include "text/template.hpp"
#include "text/tokenizer.hpp"
#include "text/wordpiece.hpp"

namespace warpwright::text {

// Which text is shortened if a sequence, special tokens included, is longer than max_length. longest_first
// shortens the longer text until both are equal, then both.
enum class Truncation : std::uint8_t { longest_first, only_first, only_second };

struct EncodeOptions {
  std::size_t max_length = 0;  // tokens; 0: no limit
  Truncation truncation = Truncation::longest_first;
  bool add_special_tokens = true;  // the template's special tokens
  SpecialTokens in_text = SpecialTokens::recognize;
};

struct Encoding {
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> types;  // one per id
  bool truncated = false;
};

// The contents of the tokenizer files of an encoder.
struct EncoderTokenizerSpec {
  std::optional<TokenizerSpec> bpe;  // byte-level BPE, added tokens included; if empty, WordPiece:
  WordPieceSpec wordpiece;
  std::optional<BertNormalizer::Options> normalizer = BertNormalizer::Options{};
  bool pretokenize = true;  // false: the text between added tokens is one word
  std::vector<AddedToken> added;
  Template post;
};

// The numbers of tokens of two texts. For a single text second = 0 and pair = false.
struct Lengths {
  std::size_t first = 0, second = 0;
  bool operator==(const Lengths&) const = default;
};
// Returns the numbers to keep if there is room for `room` tokens in all. Throws Error if the strategy cannot
// work: the text to shorten would keep no token although room > 0, or there is no second text.
Lengths truncate(Lengths lengths, bool pair, std::size_t room, Truncation truncation);

class EncoderTokenizer {
 public:
  // Throws an Error that names `where` if the spec contradicts itself.
  explicit EncoderTokenizer(EncoderTokenizerSpec spec, const std::string& where = "tokenizer");
  EncoderTokenizer(EncoderTokenizer&&) noexcept;
  EncoderTokenizer& operator=(EncoderTokenizer&&) noexcept;
  ~EncoderTokenizer();

  // Reads tokenizer.json. If it is missing, reads vocab.txt with tokenizer_config.json (do_lower_case,
  // strip_accents, tokenize_chinese_chars and the special tokens' names), or RoBERTa's vocab.json and
  // merges.txt. Throws an Error that names the field for anything in the files that this class does not
  // support. Truncation and padding in tokenizer.json are ignored: the caller's options decide truncation,
  // and packed batches need no padding.
  static EncoderTokenizer load(const std::filesystem::path& directory);

  // Thread-safe. Throws Error if truncate() does.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;

  // Every id is below this.
  std::size_t vocab_size() const { return vocab_size_; }
  // Every token type is below this.
  std::uint32_t type_count() const { return type_count_; }
  // The number of special tokens around one or two texts.
  std::size_t special_tokens(bool pair) const;
  // True if the normalizer lowercases, so that case makes no difference.
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
  std::vector<AddedToken> added_;             // matched in the text itself
  std::vector<AddedToken> normalized_added_;  // matched in the normalized text, with normalized contents
  AddedTokenMatcher matcher_, normalized_matcher_;
  Template post_;
  std::size_t vocab_size_ = 0;
  std::uint32_t type_count_ = 1;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

// True if a folder has files of an encoder's tokenizer. If some are missing, EncoderTokenizer::load() reports
// them.
bool has_encoder_tokenizer(const std::filesystem::path& folder);

}  // namespace warpwright::text
