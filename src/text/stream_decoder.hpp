// Decodes id by id, for output that appears while it is generated.
#pragma once

#include <string>

#include "text/tokenizer.hpp"

namespace warpwright::text {

// Holds back the bytes of an incomplete character, so that no output ends within one. All bytes appear in the
// end, valid or not: the joined outputs equal decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string push(TokenId id);  // returns the bytes that are ready
  std::string finish();          // returns the bytes still held back, the start of a character

 private:
  const Tokenizer& tokenizer_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace warpwright::text
