// GPT-2's pre-tokenization cuts the text into pieces. Byte pairs merge only within a piece.
//
// The pattern of openai/gpt-2, encoder.py, is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Every byte belongs to exactly one piece. A byte outside well-formed UTF-8 counts as a character of
// [^\s\p{L}\p{N}]. So the text is cut as if U+FFFD stood in its place.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace warpwright::text {

// The end of the piece that starts at `begin` < text.size(). Takes time linear in the piece. For white space
// the rest of its run is read too.
std::size_t pretoken_end(std::string_view text, std::size_t begin);

// Cuts the text into about `count` parts, none of them empty, for parallel encoding. Each cut is at the end
// of a piece whatever follows, so encoding the parts in sequence gives the ids of the whole. There are fewer
// parts if the text has too few such places.
std::vector<std::string_view> split_for_workers(std::string_view text, std::size_t count);

}  // namespace warpwright::text
