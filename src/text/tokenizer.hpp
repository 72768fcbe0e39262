// Tokenizer: byte-level BPE as GPT-2 does it. Text to ids and back, for any bytes.
//
//   const auto tokenizer = text::Tokenizer::load("gpt2/");
//   std::vector<text::TokenId> ids = tokenizer.encode("Hello world");  // {15496, 995}
//   std::string bytes = tokenizer.decode(ids);
//
// Ids are those of Hugging Face tokenizers 0.23.3 on every valid UTF-8 text. Bytes that are not UTF-8 are
// encoded as they are (pretokenize.hpp says where they are cut), and decode(encode(bytes)) gives the same
// bytes back (with add_prefix_space, behind one space).
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

// The contents of tokenizer files in plain terms, shared by loading, training and saving.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // the bytes of each id; of an added token its content
  std::vector<MergePair> merges;    // by rank
  std::vector<AddedToken> added;
  bool add_prefix_space = false;  // text that does not start with a space is given one
  bool use_regex = true;          // false: the text between added tokens is one piece
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges say
  std::string end_of_text;        // the content of the special token that ends a document; may be empty
};

class Tokenizer {
 public:
  // Checks the spec: a token for each byte, distinct tokens, merges that join two tokens into a third, added
  // tokens that agree with the vocabulary, no merge that makes a special token. Throws Error naming `where`.
  explicit Tokenizer(TokenizerSpec spec, const std::string& where = "tokenizer");
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Reads tokenizer.json, or vocab.json and merges.txt where that is missing, and the end-of-text token from
  // tokenizer_config.json ("eos_token"; without one "<|endoftext|>", if the vocabulary has it). Anything in
  // the files that this class does not do is an Error that names the field.
  static Tokenizer load(const std::filesystem::path& directory);

  // Writes tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, each whole or not at all. Makes
  // the folder. The flags of added tokens stand in tokenizer.json alone.
  void save(const std::filesystem::path& directory) const;

  // Text to ids; the second form appends. Safe to call from several threads at once.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::as_text) const;
  void encode(std::string_view text, std::vector<TokenId>& ids,
              SpecialTokens special = SpecialTokens::as_text) const;

  // Ids to bytes; an id beyond the vocabulary is an Error. The result need not be UTF-8: a token may end
  // within a character.
  std::string decode(std::span<const TokenId> ids) const;
  std::string_view bytes_of(TokenId id) const;

  std::size_t vocab_size() const { return spec_.tokens.size(); }
  std::optional<TokenId> eos_id() const { return eos_id_; }  // ends a document
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
  std::vector<TokenId> by_bytes_;       // ids in the order of their bytes; of equal ones, added tokens last
  std::vector<std::uint8_t> ordinary_;  // by id: whether plain text may give it
  MergeTable merges_;
  AddedTokenMatcher matcher_;
  std::optional<TokenId> eos_id_;
  std::unique_ptr<ScratchPool<Scratch>> pool_;
};

// True if a folder has tokenizer files; Tokenizer::load() reports any that are missing.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace warpwright::text
