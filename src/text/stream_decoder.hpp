// Decodes id by id, for output that appears while it is generated.
#pragma once

#include <string>

#include "text/tokenizer.hpp"

namespace warpwright::text {

// Holds back the bytes of an incomplete character, so that no output ends within one. All bytes appear in the
// end, valid or not: the joined outputs equal decode() of all ids. If they continue a text, decode() of that
// text's ids and these equals the text and the outputs.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool continues = false)
      : tokenizer_(tokenizer), starts_(!continues) {}

  std::string push(TokenId id);  // returns the bytes that are ready
  std::string finish();          // returns the bytes still held back, the start of a character

 private:
  const Tokenizer& tokenizer_;
  bool starts_;       // the next id is the first of a text
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace warpwright::text
