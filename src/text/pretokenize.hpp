// GPT-2's pre-tokenization cuts the text into pieces. Byte pairs merge only within a piece.
//
// The pattern of openai/gpt-2, encoder.py, is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Every byte belongs to exactly one piece. A byte outside well-formed UTF-8 counts as a character of
// [^\s\p{L}\p{N}]. So the text is cut as if U+FFFD stood in its place.
//
// Later tokenizers cut by other patterns. Each is an automaton of its own:
//   cl100k      (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//               \s*[\r\n]+|\s+(?!\S)|\s+     (openai/tiktoken, openai_public.py; Llama 3's tokenizer.json)
//   qwen        the same with \p{N} for \p{N}{1,3}     (Qwen2's tokenizer.json)
//   digits      \p{N}+, and what lies between; each_digit: \p{N}, and what lies between     (Digits)
// Any other regular expression is a SplitExpression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace warpwright::text {

// The end of the piece that starts at `begin` < text.size(). Takes time linear in the piece. For white space
// the rest of its run is read too.
std::size_t pretoken_end(std::string_view text, std::size_t begin);

enum class Pattern : std::uint8_t { gpt2, cl100k, qwen, digits, each_digit };

// The end of the pattern's piece that starts at `begin` < text.size(). The pieces of a text together take
// linear time.
std::size_t piece_end(Pattern pattern, std::string_view text, std::size_t begin);

// The pattern that a regular expression in a tokenizer.json describes, if it is one of those above.
std::optional<Pattern> pattern_of(std::string_view expression);

// The regular expression of gpt2, cl100k or qwen.
std::string_view expression_of(Pattern pattern);

// Cuts the text into about `count` parts, none of them empty, for parallel encoding. Each cut is at the end
// of a piece of each pattern whatever follows, so encoding the parts in sequence gives the ids of the whole.
// There are fewer parts if the text has too few such places.
std::vector<std::string_view> split_for_workers(std::string_view text, std::size_t count);

}  // namespace warpwright::text
