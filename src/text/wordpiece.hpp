// WordPiece: splits a word into ids, the longest match first, from a vocabulary of words and continuations.
//
// Source: google-research/bert, tokenization.py. The ids are those of Hugging Face tokenizers 0.23.3
// (models/wordpiece). next_bert_word() is the pre-tokenizer before it (pre_tokenizers/bert.rs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"
#include "text/token_trie.hpp"

namespace warpwright::text {

struct VocabularyEntry {
  std::string token;
  TokenId id = 0;
};

struct WordPieceSpec {
  std::vector<VocabularyEntry> vocabulary;  // the last of equal tokens counts; an empty one matches nothing
  std::string unknown = "[UNK]";            // replaces a word that the vocabulary cannot spell
  std::string continuing_prefix = "##";     // marks the tokens that continue a word
  std::uint64_t most_chars = 100;           // a longer word is unknown
};

class WordPiece {
 public:
  // Throws an Error that names `where` if the vocabulary lacks the unknown token.
  WordPiece(const WordPieceSpec& spec, const std::string& where);

  // Appends the ids of one UTF-8 word, which must not be empty.
  void encode(std::string_view word, std::vector<TokenId>& ids) const;

 private:
  TokenTrie words_, continuations_;
  TokenId unknown_ = 0;
  std::uint64_t most_chars_;
};

// One word of a normalized UTF-8 text: [begin, end). If no word is left, begin is the text's size.
struct BertWord {
  std::size_t begin, end;
};

// The first word at or after `from`. White space separates words. Each punctuation character is a word by
// itself.
BertWord next_bert_word(std::string_view text, std::size_t from);

}  // namespace warpwright::text
