// Properties of code points as BERT's normalizer and pre-tokenizer see them: the tables of Hugging Face
// tokenizers 0.23.3 (bert_unicode.inc), which mix several versions of Unicode. Code that computes ids must
// therefore use these tables, not UnicodeTable.
#pragma once

#include <cstdint>
#include <span>

namespace warpwright::text::bert {

// Bits of a class set.
inline constexpr std::uint8_t kControl = 1;      // removed by clean_text
inline constexpr std::uint8_t kWhite = 2;        // separates words
inline constexpr std::uint8_t kPunctuation = 4;  // a word of its own
inline constexpr std::uint8_t kChinese = 8;      // set apart by spaces
inline constexpr std::uint8_t kMark = 16;        // nonspacing: removed with the accents

// None for a code point beyond U+10FFFF.
std::uint8_t classes(char32_t code);

// True if any code point from first to last is in any of the tables.
bool any_listed(char32_t first, char32_t last);

// 0 for a character that others are not moved across.
std::uint8_t combining_class(char32_t code);

// Of at most 4 code points; nothing where the character stands for itself. Hangul syllables are not in it.
std::span<const char32_t> decomposition(char32_t code);

// The one code point that it becomes; U+0130, which becomes two, is the caller's.
char32_t lowercase(char32_t code);

}  // namespace warpwright::text::bert
