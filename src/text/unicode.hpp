// Unicode 16.0: the classes of code points that tokenizers need, and UTF-8 decoding of hostile bytes.
//
// A generated table (unicode_ranges.inc) pins the version, so ids depend neither on the system's libraries
// nor on its locale. Hugging Face tokenizers 0.23.3 uses the same version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/paged_table.hpp"

namespace warpwright::text {

// Bits of a class set.
inline constexpr std::uint8_t kLetter = 1;  // \p{L}
inline constexpr std::uint8_t kNumber = 2;  // \p{N}
inline constexpr std::uint8_t kSpace = 4;   // \s, White_Space
inline constexpr std::uint8_t kWord = 8;    // \w: alphabetic, marks, decimal digits, connectors, joiners

class UnicodeTable {
 public:
  static const UnicodeTable& instance();

  // The classes of a code point; 0 beyond U+10FFFF.
  std::uint8_t classes(char32_t code) const { return table_[code]; }

 private:
  UnicodeTable();

  PagedTable table_;
};

// A byte outside well-formed UTF-8. It is a character by itself and has no class, like U+FFFD.
inline constexpr char32_t kInvalidByte = 0xffffffff;

struct Utf8Char {
  char32_t code;    // kInvalidByte if no well-formed sequence starts here
  unsigned length;  // 1 to 4 bytes; 1 for an invalid byte
};

// Decodes the character at p < end. Accepts only the shortest form, no surrogates, and nothing beyond
// U+10FFFF.
Utf8Char decode_utf8(const unsigned char* p, const unsigned char* end);

// The first or last character of a text, which must not be empty.
Utf8Char first_char(std::string_view text);
Utf8Char last_char(std::string_view text);

// The number of bytes of white space at the end of the text.
std::size_t trailing_space(std::string_view text);

bool is_utf8(std::string_view bytes);

// Returns the text with U+FFFD for each maximal part of an incomplete character and for each other invalid
// byte. The Unicode Standard (section 3.9) recommends this, and Python's and Rust's decoders do it. UTF-8
// text is returned unchanged.
std::string repair_utf8(std::string_view bytes);

void append_utf8(char32_t code, std::string& text);

// The number of bytes of a code point in UTF-8.
inline unsigned utf8_size(char32_t code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

// The number of bytes in a sequence with this first byte: 1 to 4, or 0 if no sequence starts with it.
unsigned utf8_length(unsigned char first);

}  // namespace warpwright::text
