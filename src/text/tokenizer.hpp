// Tokenizer: byte-pair encoding, from text to ids and back, for any bytes: GPT-2's, Llama's, Qwen's and
// others.
//
//   const auto tokenizer = text::Tokenizer::load("gpt2/");
//   std::vector<text::TokenId> ids = tokenizer.encode("Hello world");  // {15496, 995}
//   std::string bytes = tokenizer.decode(ids);
//
// On every valid UTF-8 text the ids are those of Hugging Face tokenizers 0.23.3. Other bytes are encoded as
// they are (pretokenize.hpp says where they are cut). decode(encode(bytes)) gives the same bytes back, unless
// the tokenizer's own rules change text: add_prefix_space adds a space, normalizers rewrite, and marks of
// spaces become spaces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/normalizer.hpp"
#include "text/pieces.hpp"

namespace warpwright::text {

template <class Scratch>
class ScratchPool;

// The Metaspace pre-tokenizer: spaces become marks, and a text gets one in front.
struct Metaspace {
  enum class Prepend : std::uint8_t { always, first, never };
  Prepend prepend = Prepend::always;  // first: only at the start of a text, not after an added token
  bool split = true;                  // cuts before each mark
  bool operator==(const Metaspace&) const = default;
};

// The rules of a model whose tokens are spelled in characters (Llama 2, Mistral). A character without a token
// becomes the tokens "<0x00>" to "<0xFF>" of its bytes.
struct CharacterSpec {
  enum class FirstSpace : std::uint8_t {
    keep,
    strip,        // decode() leaves out one space at the start of the whole text
    strip_marks,  // decode() leaves out all marks of the first token
  };
  std::string mark;  // is a space in tokens, such as "\u2581"; may be empty
  std::optional<Metaspace> metaspace;
  FirstSpace first_space = FirstSpace::keep;
  bool operator==(const CharacterSpec&) const = default;
};

// The contents of tokenizer files, shared by loading, training and saving.
struct TokenizerSpec {
  // The bytes of each id; for an added token its content. With `characters`: the token as the file spells it.
  // Empty: the id has no token.
  std::vector<std::string> tokens;
  std::vector<MergePair> merges;  // by rank
  std::vector<AddedToken> added;
  bool add_prefix_space = false;  // text that does not start with a space gets one
  bool use_regex = true;          // false: the text between added tokens is one piece
  bool ignore_merges = false;     // a piece that equals a token becomes that token, whatever the merges say
  std::string end_of_text;        // the content of the special token that ends a document; may be empty
  std::vector<NormalizerStep> normalizer;
  std::vector<Cut> patterns;                // cut the text before GPT-2's does (use_regex), or instead of it
  std::optional<CharacterSpec> characters;  // nothing: tokens are any bytes, spelled in GPT-2's alphabet
  std::vector<TokenId> before, after;       // what the template puts around a text, such as Llama's <s>
};

class Tokenizer {
 public:
  // Throws an Error that names `where` unless the spec is consistent. There is a token for each byte, and
  // tokens are distinct. Merges join two tokens into a third, which is of the model and not special. Added
  // tokens agree with the vocabulary.
  explicit Tokenizer(TokenizerSpec spec, const std::string& where = "tokenizer");
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Reads tokenizer.json or, if it is missing, vocab.json and merges.txt, with add_prefix_space and
  // added_tokens_decoder of tokenizer_config.json. The end-of-text token is "eos_token" in
  // tokenizer_config.json, or else "<|endoftext|>" if the vocabulary has it. Throws an Error that names the
  // field for anything in the files that this class does not support.
  static Tokenizer load(const std::filesystem::path& directory);

  // Creates the folder and writes tokenizer.json and tokenizer_config.json, each whole or not at all. If
  // vocab.json and merges.txt can say the same, it writes them, too.
  void save(const std::filesystem::path& directory) const;

  // Encodes a text, without what the template puts around it. The second form appends to ids. A text that
  // `continues` one gets nothing prepended. Thread-safe.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::as_text) const;
  void encode(std::string_view text, std::vector<TokenId>& ids,
              SpecialTokens special = SpecialTokens::as_text, bool continues = false) const;

  // True if a text may be cut before a space that follows an ASCII character other than white space: encoding
  // the second part as one that continues gives the ids of the whole. This is for special tokens as text.
  bool cuts_at_spaces() const;

  // Decodes ids to bytes. Throws Error for an id outside the vocabulary. The result need not be UTF-8, since
  // a token may end within a character. An id that has no token has no bytes. Llama's decoder leaves out the
  // space at the start of a text; bytes_of() keeps it, for a token within one.
  std::string decode(std::span<const TokenId> ids) const;
  std::string_view bytes_of(TokenId id) const;

  std::size_t vocab_size() const { return spec_.tokens.size(); }  // the largest id plus one
  std::optional<TokenId> eos_id() const { return eos_id_; }       // the token that ends a document
  std::optional<TokenId> id_of(std::string_view bytes) const;
  // True if some text could get other ids if the model's vocabulary had this added token, which it lacks.
  bool model_lacks(const AddedToken& token) const;
  const TokenizerSpec& spec() const { return spec_; }

 private:
  struct Scratch;

  // The place of a stretch of text between added tokens.
  struct Place {
    bool starts;     // at the start of the text
    bool continues;  // at the start of a text that continues one
  };

  void index_tokens(const std::string& where);
  void index_bytes(const std::string& where);
  [[noreturn]] void fail_without_byte(char byte, const std::string& where) const;
  void index_characters(const std::string& where);
  void index_merges(const std::string& where);
  void index_added_tokens(const std::string& where);
  void check_added_tokens(const std::string& where);
  bool could_be_text(const AddedToken& token) const;
  void check_template(const std::string& where) const;
  void make_cut_rules();
  bool has_token_of_mark() const;
  bool merges_across_marks() const;
  bool normalizes_in_parts() const;
  bool added_tokens_reach_across() const;
  std::optional<TokenId> ordinary_id_of(std::string_view bytes) const;

  void encode_segment(std::string_view text, Place place, SpecialTokens special, Scratch& scratch,
                      std::vector<TokenId>& ids) const;
  void encode_prefixed(std::string_view text, Place place, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  std::string with_spaces(const std::string& text) const;
  std::string_view with_marks(std::string_view text, Place place, std::string& buffer) const;
  std::span<const TokenId> merge_piece(std::string_view piece, Scratch& scratch) const;
  std::size_t spell_piece(std::string_view piece, std::span<TokenId> ids) const;

  TokenizerSpec spec_;
  std::array<TokenId, 256> byte_ids_{};
  // Ids sorted by their bytes; among equal bytes, added tokens come last.
  std::vector<TokenId> by_bytes_;
  std::vector<std::uint8_t> ordinary_;  // by id: true if plain text may produce it
  std::vector<TokenId> character_ids_;  // with `characters`: by code point; TokenTrie::kNone: no token
  // The bytes of each id, if they differ from spec_.tokens: with `characters`, or with a normalizer.
  std::vector<std::string> decoded_;
  MergeTable merges_;
  Normalizer normalizer_;
  CutRules cut_rules_;
  // Without a normalizer, matcher_ finds all added tokens. With one, it finds those in raw_added_, and the
  // second those in normalized_added_, in the normalized text.
  std::vector<AddedToken> raw_added_, normalized_added_;
  AddedTokenMatcher matcher_, normalized_matcher_;
  std::optional<TokenId> eos_id_;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

// True if a folder has tokenizer files. If some are missing, Tokenizer::load() reports them.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace warpwright::text
