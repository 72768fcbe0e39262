#include "text/stream_decoder.hpp"

#include <algorithm>
#include <utility>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

// The number of bytes at the end that could begin a character.
std::size_t unfinished_bytes(std::string_view bytes) {
  for (std::size_t size = 1; size <= std::min<std::size_t>(3, bytes.size()); ++size) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - size]);
    if ((byte & 0xc0) == 0x80) continue;
    return utf8_length(byte) > size ? size : 0;
  }
  return 0;
}

}  // namespace

std::string StreamDecoder::push(TokenId id) {
  // Only the first id of a text can decode to less than its bytes.
  if (std::exchange(starts_, false)) {
    held_ += tokenizer_.decode({&id, 1});
  } else {
    held_ += tokenizer_.bytes_of(id);
  }
  std::string ready = std::move(held_);
  const std::size_t ready_size = ready.size() - unfinished_bytes(ready);
  held_ = ready.substr(ready_size);
  ready.resize(ready_size);
  return ready;
}

std::string StreamDecoder::finish() {
  return std::exchange(held_, {});
}

}  // namespace warpwright::text
