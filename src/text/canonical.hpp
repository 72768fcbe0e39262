// Canonical decomposition, ordering and composition of Unicode (The Unicode Standard, section 3.11), and NFC.
//
// The tables are those of Hugging Face tokenizers 0.23.3 (bert_unicode.inc, nfc_pairs.inc).
#pragma once

#include <string>
#include <string_view>

namespace warpwright::text {

bool is_hangul_syllable(char32_t code);

// Appends the full canonical decomposition of a code point.
void append_decomposed(std::u32string& text, char32_t code);

// Sorts each run of characters whose combining class is not 0 by class. The sort is stable.
void put_in_canonical_order(std::u32string& text);

// The code point that two compose to, or 0.
char32_t composed(char32_t first, char32_t second);

// Composes a decomposed and ordered text in place.
void compose(std::u32string& text);

// Returns the text in NFC: the text itself if it is already, otherwise a text in `buffer`. Bytes outside
// well-formed UTF-8 remain as they are, and nothing composes across them. Takes O(n log n) time, where n is
// the longest run of combining characters.
std::string_view to_nfc(std::string_view text, std::string& buffer);

}  // namespace warpwright::text
