// GPT-2's pre-tokenization: the text is cut into pieces, and byte pairs merge only within a piece.
//
// Source: openai/gpt-2, encoder.py, whose pattern is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Every byte belongs to exactly one piece. A byte that is not part of well-formed UTF-8 counts as a character
// of
// [^\s\p{L}\p{N}], so that such text is cut where the same text with U+FFFD in its place would be.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace warpwright::text {

// The end of the piece that starts at `begin` < text.size(). Linear in the piece (plus, for white space, the
// rest of its run).
std::size_t pretoken_end(std::string_view text, std::size_t begin);

// Cuts the text into about `count` parts, at places where pieces end whatever stands around them: encoding
// the parts one after the other gives the ids of the whole. Parts are not empty, and fewer where there is no
// place.
std::vector<std::string_view> split_for_workers(std::string_view text, std::size_t count);

}  // namespace warpwright::text
