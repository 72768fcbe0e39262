// Added tokens: contents that are found in the text as they stand, before it is cut into pieces and merged.
//
// Semantics as Hugging Face tokenizers has them (tokenizer/added_vocabulary.rs): the leftmost match, the
// longest among those; tokens that are not `normalized` first, on the whole text, the others in what is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"
#include "text/token_trie.hpp"

namespace warpwright::text {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      // a control token: recognized in a text only where the caller asks for it
  bool single_word = false;  // matches only where no \w stands beside it
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;       // and on its right
  bool normalized = false;   // matched in the second round
  bool operator==(const AddedToken&) const = default;
};

// Tells encode() whether to recognize special tokens spelled out in the text. Text from strangers must not
// be able to end a document, so Tokenizer::encode() treats them as ordinary text by default.
enum class SpecialTokens { as_text, recognize };

// One stretch of a text: an added token, or text between them.
struct Segment {
  std::string_view text;
  const AddedToken* token = nullptr;
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);  // keeps pointers to them

  // Appends the segments of the text, in order, without empty ones.
  void split(std::string_view text, SpecialTokens special, std::vector<Segment>& segments) const;

 private:
  struct Round {
    std::vector<const AddedToken*> tokens;
    TokenTrie trie;  // of their contents; its ids are indices of tokens
    bool only_special = true;
  };

  static void split_round(const Round& round, std::string_view text, SpecialTokens special,
                          std::vector<Segment>& segments);

  Round raw_, normalized_;
};

}  // namespace warpwright::text
