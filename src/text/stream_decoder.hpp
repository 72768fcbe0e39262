// Decoding id by id, for output that appears while it is generated.
#pragma once

#include <string>

#include "text/tokenizer.hpp"

namespace warpwright::text {

// Holds back the bytes of a character that is not complete yet, so that what comes out never ends within one.
// All bytes come out in the end, valid or not: the outputs joined are decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string push(TokenId id);  // the bytes that are ready
  std::string finish();          // what is still held back: the beginning of a character

 private:
  const Tokenizer& tokenizer_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace warpwright::text
