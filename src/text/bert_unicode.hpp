// Properties of code points for BERT's normalizer and pre-tokenizer. The tables are those of Hugging Face
// tokenizers 0.23.3 (bert_unicode.inc) and mix several versions of Unicode. So code that computes BERT's ids
// must use these tables, not UnicodeTable.
#pragma once

#include <cstdint>
#include <span>

namespace warpwright::text::bert {

// Bits of a class set.
inline constexpr std::uint8_t kControl = 1;      // removed by clean_text
inline constexpr std::uint8_t kWhite = 2;        // separates words
inline constexpr std::uint8_t kPunctuation = 4;  // a word by itself
inline constexpr std::uint8_t kChinese = 8;      // set apart by spaces
inline constexpr std::uint8_t kMark = 16;        // nonspacing; removed with the accents

// The classes of a code point; 0 beyond U+10FFFF.
std::uint8_t classes(char32_t code);

// True if any code point from first to last is in any of the tables.
bool any_listed(char32_t first, char32_t last);

// The canonical combining class. NFD never moves other characters across one of class 0.
std::uint8_t combining_class(char32_t code);

// At most 4 code points. Empty if the character does not decompose, and for Hangul syllables.
std::span<const char32_t> decomposition(char32_t code);

// The lowercase code point. The caller must handle U+0130, which becomes two.
char32_t lowercase(char32_t code);

}  // namespace warpwright::text::bert
