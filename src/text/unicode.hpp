// Unicode 16.0: the classes of code points that tokenizers ask about, and UTF-8 decoding of hostile bytes.
//
// The version is pinned in a generated table (unicode_ranges.inc), so that ids depend neither on the system's
// libraries nor on its locale. It is the version inside Hugging Face tokenizers 0.23.3.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace warpwright::text {

// Bits of a class set.
inline constexpr std::uint8_t kLetter = 1;  // \p{L}
inline constexpr std::uint8_t kNumber = 2;  // \p{N}
inline constexpr std::uint8_t kSpace = 4;   // \s, White_Space
inline constexpr std::uint8_t kWord = 8;    // \w: alphabetic, marks, decimal digits, connectors, joiners

class UnicodeTable {
 public:
  static const UnicodeTable& instance();

  // The classes of a code point; none for one beyond U+10FFFF.
  std::uint8_t classes(char32_t code) const {
    return code < kCodePoints ? pages_[page_of_[code >> kPageBits]][code & (kPageSize - 1)] : 0;
  }

 private:
  UnicodeTable();

  static constexpr char32_t kCodePoints = 0x110000;
  static constexpr unsigned kPageBits = 8;
  static constexpr char32_t kPageSize = 1u << kPageBits;
  using Page = std::array<std::uint8_t, kPageSize>;

  std::array<std::uint16_t, kCodePoints / kPageSize> page_of_{};
  std::vector<Page> pages_;
};

// A byte that is not part of well-formed UTF-8: it stands for itself and has no class, as U+FFFD has none.
inline constexpr char32_t kInvalidByte = 0xffffffff;

struct Utf8Char {
  char32_t code;    // kInvalidByte where no well-formed sequence starts
  unsigned length;  // 1 to 4 bytes; 1 for an invalid byte
};

// Decodes the character at p < end: the shortest form only, no surrogates, nothing beyond U+10FFFF.
Utf8Char decode_utf8(const unsigned char* p, const unsigned char* end);

bool is_utf8(std::string_view bytes);

// How many bytes a sequence with this first byte has: 1 to 4, or 0 where none can start with it.
unsigned utf8_length(unsigned char first);

}  // namespace warpwright::text
