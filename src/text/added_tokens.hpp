// Added tokens: strings that are found verbatim in the text, before it is cut into pieces and merged.
//
// The rules are those of Hugging Face tokenizers (tokenizer/added_vocabulary.rs). The leftmost match wins,
// and among those the longest. A first round finds the tokens that are not `normalized`, in the whole text. A
// second round finds the others in the remaining text.
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
  bool special = false;      // a control token, recognized in a text only if the caller asks for it
  bool single_word = false;  // matches only if no \w is adjacent
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;       // includes the white space on its right
  bool normalized = false;   // matched in the second round
  bool in_model = true;      // false: the model's vocabulary lacks it, so only the search makes it
  bool operator==(const AddedToken&) const = default;
};

// Tells encode() whether to recognize special tokens spelled out in the text. Tokenizer::encode() treats them
// as ordinary text by default, so that untrusted text cannot end a document.
enum class SpecialTokens { as_text, recognize };

// A stretch of a text: an added token, or the text between two of them.
struct Segment {
  std::string_view text;
  const AddedToken* token = nullptr;
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);  // keeps pointers to the tokens

  // Appends the segments of the text in order. No segment is empty.
  void split(std::string_view text, SpecialTokens special, std::vector<Segment>& segments) const;

 private:
  struct Round {
    std::vector<const AddedToken*> tokens;
    TokenTrie trie;  // of the tokens' contents; its ids are indices into `tokens`
    bool only_special = true;
  };

  static void split_round(const Round& round, std::string_view text, SpecialTokens special,
                          std::vector<Segment>& segments);

  Round raw_, normalized_;
};

}  // namespace warpwright::text
