// GPT-2's byte alphabet: each byte written as one printable character, as tokenizer files spell tokens.
//
// Printable bytes of Latin-1 stand for themselves; the other 68 are U+0100, U+0101, … in order (a space is
// "Ġ"). Source: openai/gpt-2, encoder.py, bytes_to_unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warpwright::text {

// Any bytes, spelled in the alphabet (as UTF-8).
std::string spell_bytes(std::string_view bytes);

// The bytes that a UTF-8 string of the alphabet spells; nothing where it holds any other character.
std::optional<std::string> unspell_bytes(std::string_view spelled);

// The position of each byte's character in the alphabet sorted by code point: '!' is 0, … "Ń" is 255.
unsigned alphabet_rank(unsigned char byte);

}  // namespace warpwright::text
