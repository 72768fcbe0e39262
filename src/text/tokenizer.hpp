// Tokenizer: GPT-2's byte-level BPE, from text to ids and back, for any bytes.
//
//   const auto tokenizer = text::Tokenizer::load("gpt2/");
//   std::vector<text::TokenId> ids = tokenizer.encode("Hello world");  // {15496, 995}
//   std::string bytes = tokenizer.decode(ids);
//
// On every valid UTF-8 text the ids are those of Hugging Face tokenizers 0.23.3. Other bytes are encoded as
// they are (pretokenize.hpp says where they are cut). decode(encode(bytes)) gives the same bytes back, after
// one space if add_prefix_space is set.
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

namespace warpwright::text {

template <class Scratch>
class ScratchPool;

// The contents of tokenizer files, shared by loading, training and saving.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // the bytes of each id; for an added token its content
  std::vector<MergePair> merges;    // by rank
  std::vector<AddedToken> added;
  bool add_prefix_space = false;  // text that does not start with a space gets one
  bool use_regex = true;          // false: the text between added tokens is one piece
  bool ignore_merges = false;     // a piece that equals a token becomes that token, whatever the merges say
  std::string end_of_text;        // the content of the special token that ends a document; may be empty
};

class Tokenizer {
 public:
  // Throws an Error that names `where` unless the spec is consistent. There is a token for each byte, and
  // tokens are distinct. Merges join two tokens into a third, which is not special. Added tokens agree with
  // the vocabulary.
  explicit Tokenizer(TokenizerSpec spec, const std::string& where = "tokenizer");
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Reads tokenizer.json or, if it is missing, vocab.json and merges.txt. The end-of-text token is
  // "eos_token" in tokenizer_config.json, or else "<|endoftext|>" if the vocabulary has it. Throws an Error
  // that names the field for anything in the files that this class does not support.
  static Tokenizer load(const std::filesystem::path& directory);

  // Creates the folder and writes tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, each
  // whole or not at all. Only tokenizer.json holds the flags of added tokens.
  void save(const std::filesystem::path& directory) const;

  // Encodes a text. The second form appends to ids. Thread-safe.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::as_text) const;
  void encode(std::string_view text, std::vector<TokenId>& ids,
              SpecialTokens special = SpecialTokens::as_text) const;

  // Decodes ids to bytes. Throws Error for an id outside the vocabulary. The result need not be UTF-8, since
  // a token may end within a character.
  std::string decode(std::span<const TokenId> ids) const;
  std::string_view bytes_of(TokenId id) const;

  std::size_t vocab_size() const { return spec_.tokens.size(); }
  std::optional<TokenId> eos_id() const { return eos_id_; }  // the token that ends a document
  std::optional<TokenId> id_of(std::string_view bytes) const;
  const TokenizerSpec& spec() const { return spec_; }

 private:
  struct Scratch;

  void index_tokens(const std::string& where);
  void index_merges(const std::string& where);
  void check_added_tokens(const std::string& where);
  std::optional<TokenId> ordinary_id_of(std::string_view bytes) const;

  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  std::span<const TokenId> merge_piece(std::string_view piece, Scratch& scratch) const;

  TokenizerSpec spec_;
  std::array<TokenId, 256> byte_ids_{};
  // Ids sorted by their bytes; among equal bytes, added tokens come last.
  std::vector<TokenId> by_bytes_;
  std::vector<std::uint8_t> ordinary_;  // by id: true if plain text may produce it
  MergeTable merges_;
  AddedTokenMatcher matcher_;
  std::optional<TokenId> eos_id_;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

// True if a folder has tokenizer files. If some are missing, Tokenizer::load() reports them.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace warpwright::text
