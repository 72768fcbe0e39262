#include "text/pretokenize.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

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

// The length of the contraction at p, an apostrophe. 0 if there is none.
std::size_t contraction_length(const unsigned char* p, const unsigned char* end) {
  if (end - p < 2) return 0;
  if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd') return 2;
  if (end - p < 3) return 0;
  const bool pair =
      (p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') || (p[1] == 'l' && p[2] == 'l');
  return pair ? 3 : 0;
}

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

std::vector<std::string_view> split_for_workers(std::string_view text, std::size_t count) {
  const auto kind = [&](std::size_t i) { return kAsciiKinds[static_cast<unsigned char>(text[i])]; };
  std::vector<std::string_view> parts;
  const std::size_t step = text.size() / std::max<std::size_t>(count, 1) + 1;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin + std::min(step, text.size() - begin);
    // Cut where a non-space is followed by white space. No piece continues across this place, and no rule
    // looks back.
    while (end < text.size() &&
           !(kind(end) == kSpace && kind(end - 1) != kSpace && kind(end - 1) != kNotAscii)) {
      ++end;
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

}  // namespace warpwright::text
