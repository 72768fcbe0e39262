#include "text/byte_alphabet.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr unsigned kAlphabetEnd = 0x100 + 68;  // one past the last code point in use

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

struct Alphabet {
  std::array<std::uint16_t, 256> code_of{};
  std::array<std::int16_t, kAlphabetEnd> byte_of{};  // -1: not in the alphabet
  std::array<std::uint8_t, 256> rank_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned code = is_printable(byte) ? byte : next++;
    alphabet.code_of[byte] = static_cast<std::uint16_t>(code);
    alphabet.byte_of[code] = static_cast<std::int16_t>(byte);
  }
  std::uint8_t rank = 0;
  for (const std::int16_t byte : alphabet.byte_of) {
    if (byte >= 0) alphabet.rank_of[static_cast<std::size_t>(byte)] = rank++;
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string spelled;
  spelled.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) {
    const unsigned code = kAlphabet.code_of[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      spelled += static_cast<char>(code);
    } else {
      spelled += static_cast<char>(0xc0 | (code >> 6));
      spelled += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return spelled;
}

std::optional<std::string> unspell_bytes(std::string_view spelled) {
  std::string bytes;
  const auto* p = reinterpret_cast<const unsigned char*>(spelled.data());
  const auto* end = p + spelled.size();
  while (p < end) {
    const Utf8Char c = decode_utf8(p, end);
    if (c.code >= kAlphabetEnd || kAlphabet.byte_of[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[c.code]);
    p += c.length;
  }
  return bytes;
}

unsigned alphabet_rank(unsigned char byte) {
  return kAlphabet.rank_of[byte];
}

}  // namespace warpwright::text
