// GPT-2's byte alphabet: tokenizer files spell each byte of a token as one printable character.
//
// Printable Latin-1 bytes spell themselves. The other 68 bytes are U+0100, U+0101, … in order (a space is
// "Ġ"). Source: openai/gpt-2, encoder.py, bytes_to_unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warpwright::text {

// Spells any bytes in the alphabet, as UTF-8.
std::string spell_bytes(std::string_view bytes);

// The bytes that a UTF-8 string spells. Empty if the string holds a character outside the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelled);

// The position of each byte's character in the alphabet sorted by code point: '!' is 0, … "Ń" is 255.
unsigned alphabet_rank(unsigned char byte);

}  // namespace warpwright::text
