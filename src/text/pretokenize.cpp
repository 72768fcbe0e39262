#include "text/pretokenize.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr std::uint8_t kKinds = kLetter | kNumber | kSpace;  // 0: a character of [^\s\p{L}\p{N}]
constexpr std::uint8_t kNotAscii = 0xff;

constexpr std::array<std::uint8_t, 256> make_ascii_kinds() {
  std::array<std::uint8_t, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    kinds[static_cast<std::size_t>(c)] = c >= 0x80              ? kNotAscii
                                         : letter               ? kLetter
                                         : c >= '0' && c <= '9' ? kNumber
                                         : space                ? kSpace
                                                                : std::uint8_t{0};
  }
  return kinds;
}
constexpr std::array<std::uint8_t, 256> kAsciiKinds = make_ascii_kinds();

struct Char {
  std::uint8_t kind;
  unsigned length;
};

Char char_at(const unsigned char* p, const unsigned char* end) {
  if (kAsciiKinds[*p] != kNotAscii) return {kAsciiKinds[*p], 1};
  const Utf8Char c = decode_utf8(p, end);
  return {static_cast<std::uint8_t>(UnicodeTable::instance().classes(c.code) & kKinds), c.length};
}

// The end of the run of characters of this kind. `last` receives the start of its last character.
const unsigned char* run_end(const unsigned char* p, const unsigned char* end, std::uint8_t kind,
                             const unsigned char** last) {
  while (p < end) {
    if (kAsciiKinds[*p] == kind) {
      *last = p++;
      continue;
    }
    if (kAsciiKinds[*p] != kNotAscii) break;
    const Char c = char_at(p, end);
    if (c.kind != kind) break;
    *last = p;
    p += c.length;
  }
  return p;
}

// The length of GPT-2's contraction at p, an apostrophe. 0 if there is none.
std::size_t contraction_length(const unsigned char* p, const unsigned char* end) {
  if (end - p < 2) return 0;
  if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd') return 2;
  if (end - p < 3) return 0;
  const bool pair =
      (p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') || (p[1] == 'l' && p[2] == 'l');
  return pair ? 3 : 0;
}

// The length of cl100k's contraction at p, an apostrophe, in either case. U+017F is a lowercase of S.
std::size_t folded_contraction_length(const unsigned char* p, const unsigned char* end) {
  const auto lower = [&](std::ptrdiff_t i) -> unsigned char {
    return end - p > i && p[i] < 0x80 ? static_cast<unsigned char>(p[i] | 0x20) : 0;
  };
  const unsigned char a = lower(1), b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return end - p > 2 && p[1] == 0xc5 && p[2] == 0xbf ? 3 : 0;
}

bool is_newline(unsigned char byte) {
  return byte == '\r' || byte == '\n';
}

// The end of up to `most` numbers.
const unsigned char* numbers_end(const unsigned char* p, const unsigned char* end, int most) {
  for (; most > 0 && p < end; --most) {
    const Char c = char_at(p, end);
    if (c.kind != kNumber) break;
    p += c.length;
  }
  return p;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at p, which is white space.
const unsigned char* space_end(const unsigned char* p, const unsigned char* end) {
  const unsigned char* last = p;
  const unsigned char* stop = run_end(p, end, kSpace, &last);
  for (const unsigned char* q = stop; q > p; --q) {
    if (is_newline(q[-1])) return q;
  }
  return stop != end && last != p ? last : stop;
}

// The end of cl100k's piece at p, in which at most `numbers` numbers stand together.
const unsigned char* cl100k_end(const unsigned char* p, const unsigned char* end, int numbers) {
  if (*p == '\'') {
    if (const std::size_t length = folded_contraction_length(p, end)) return p + length;
  }
  const unsigned char* last = p;
  Char first = char_at(p, end);
  if (first.kind == kLetter) return run_end(p + first.length, end, kLetter, &last);
  if (first.kind == kNumber) return numbers_end(p, end, numbers);
  const unsigned char* after = p + first.length;
  const std::uint8_t next = after < end ? char_at(after, end).kind : kNotAscii;
  if (next == kLetter && !is_newline(*p)) return run_end(after, end, kLetter, &last);
  const bool marks = first.kind == 0 || (*p == ' ' && next == 0);
  if (!marks) return space_end(p, end);
  const unsigned char* stop = run_end(after, end, 0, &last);
  while (stop < end && is_newline(*stop)) ++stop;
  return stop;
}

// The Digits pre-tokenizer of Hugging Face tokenizers 0.23.3 uses Unicode 17.0, which has two more blocks of
// numbers.
bool is_digit(const Utf8Char& c) {
  return (UnicodeTable::instance().classes(c.code) & kNumber) || (c.code >= 0x11de0 && c.code <= 0x11de9) ||
         (c.code >= 0x16ff4 && c.code <= 0x16ff6);
}

const unsigned char* digits_end(const unsigned char* p, const unsigned char* end, bool individually) {
  const Utf8Char first = decode_utf8(p, end);
  const bool digits = is_digit(first);
  p += first.length;
  while (p < end && !(digits && individually)) {
    const Utf8Char c = decode_utf8(p, end);
    if (is_digit(c) != digits) break;
    p += c.length;
  }
  return p;
}

struct KnownExpression {
  std::string_view expression;
  Pattern pattern;
};

// The first expression of each pattern is the one that files are written with.
constexpr KnownExpression kExpressions[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Pattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Pattern::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Pattern::cl100k},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Pattern::qwen},
};

}  // namespace

std::size_t pretoken_end(std::string_view text, std::size_t begin) {
  const auto* base = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* end = base + text.size();
  const unsigned char* p = base + begin;
  if (*p == '\'') {
    if (const std::size_t length = contraction_length(p, end)) return begin + length;
  }
  const unsigned char* last = p;
  Char first = char_at(p, end);
  if (*p == ' ' && end - p > 1) {  // " ?": a space joins what follows, unless that is white space too
    const Char next = char_at(p + 1, end);
    if (next.kind != kSpace) {
      first = {next.kind, 1 + next.length};
      last = p + 1;
    }
  }
  const unsigned char* stop = run_end(p + first.length, end, first.kind, &last);
  // \s+(?!\S): a run of white space before other text leaves its last character to that text. A run of one
  // character does not.
  if (first.kind == kSpace && stop != end && last != p) stop = last;
  return static_cast<std::size_t>(stop - base);
}

std::size_t piece_end(Pattern pattern, std::string_view text, std::size_t begin) {
  const auto* base = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char *p = base + begin, *end = base + text.size();
  switch (pattern) {
    case Pattern::gpt2:
      break;
    case Pattern::cl100k:
      return static_cast<std::size_t>(cl100k_end(p, end, 3) - base);
    case Pattern::qwen:
      return static_cast<std::size_t>(cl100k_end(p, end, 1) - base);
    case Pattern::digits:
      return static_cast<std::size_t>(digits_end(p, end, false) - base);
    case Pattern::each_digit:
      return static_cast<std::size_t>(digits_end(p, end, true) - base);
  }
  return pretoken_end(text, begin);
}

std::optional<Pattern> pattern_of(std::string_view expression) {
  for (const KnownExpression& known : kExpressions) {
    if (known.expression == expression) return known.pattern;
  }
  return std::nullopt;
}

std::string_view expression_of(Pattern pattern) {
  const auto* known = std::find_if(std::begin(kExpressions), std::end(kExpressions),
                                   [&](const KnownExpression& e) { return e.pattern == pattern; });
  return known == std::end(kExpressions) ? std::string_view() : known->expression;
}

std::vector<std::string_view> split_for_workers(std::string_view text, std::size_t count) {
  const auto kind = [&](std::size_t i) { return kAsciiKinds[static_cast<unsigned char>(text[i])]; };
  // True where a non-space is followed by white space. No piece continues across this place, and no rule
  // looks back. But later patterns join marks with newlines.
  const auto ends_everywhere = [&](std::size_t i) {
    const std::uint8_t before = kind(i - 1);
    if (kind(i) != kSpace || before == kSpace || before == kNotAscii) return false;
    return before != 0 || !is_newline(static_cast<unsigned char>(text[i]));
  };
  std::vector<std::string_view> parts;
  const std::size_t step = text.size() / std::max<std::size_t>(count, 1) + 1;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin + std::min(step, text.size() - begin);
    while (end < text.size() && !ends_everywhere(end)) ++end;
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

}  // namespace warpwright::text
