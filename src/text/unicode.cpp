#include "text/unicode.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace warpwright::text {
namespace {

struct ClassRange {
  char32_t first, last;
  int classes;
};

constexpr ClassRange kRanges[] = {
#include "text/unicode_ranges.inc"
};

PagedTable make_classes() {
  std::vector<std::uint8_t> values(kCodePoints, 0);
  for (const ClassRange& range : kRanges) {
    std::fill(values.begin() + range.first, values.begin() + range.last + 1,
              static_cast<std::uint8_t>(range.classes));
  }
  return PagedTable(values);
}

bool is_continuation(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

}  // namespace

const UnicodeTable& UnicodeTable::instance() {
  static const UnicodeTable table;
  return table;
}

UnicodeTable::UnicodeTable() : table_(make_classes()) {}

bool is_utf8(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = p + bytes.size();
  while (p < end) {
    std::uint64_t eight;
    if (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
      p += 8;
      continue;
    }
    const Utf8Char c = decode_utf8(p, end);
    if (c.code == kInvalidByte) return false;
    p += c.length;
  }
  return true;
}

std::string repair_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = p + bytes.size();
  while (p < end) {
    const Utf8Char c = decode_utf8(p, end);
    if (c.code != kInvalidByte) {
      text.append(reinterpret_cast<const char*>(p), c.length);
      p += c.length;
      continue;
    }
    text += "\xef\xbf\xbd";
    // The second byte decides whether a character can continue. The later bytes need only be continuation
    // bytes.
    const unsigned length = utf8_length(*p);
    const bool goes_on = length > 1 && end - p > 1 && is_continuation(p[1]) &&
                         !(p[0] == 0xe0 && p[1] < 0xa0) && !(p[0] == 0xed && p[1] >= 0xa0) &&
                         !(p[0] == 0xf0 && p[1] < 0x90) && !(p[0] == 0xf4 && p[1] >= 0x90);
    unsigned size = goes_on ? 2 : 1;
    while (goes_on && size < length && p + size < end && is_continuation(p[size])) ++size;
    p += size;
  }
  return text;
}

void append_utf8(char32_t code, std::string& text) {
  const unsigned size = utf8_size(code);
  if (size == 1) {
    text += static_cast<char>(code);
    return;
  }
  const auto lead = static_cast<unsigned char>(0xf00u >> size);  // `size` ones, then zeros, in the low byte
  text += static_cast<char>(lead | code >> (6 * (size - 1)));
  for (unsigned i = size - 1; i-- > 0;) text += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

unsigned utf8_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  return first < 0xf5 ? 4 : 0;
}

Utf8Char decode_utf8(const unsigned char* p, const unsigned char* end) {
  constexpr Utf8Char kInvalid{kInvalidByte, 1};
  const unsigned length = utf8_length(p[0]);
  if (length == 1) return {p[0], 1};
  if (length == 0 || static_cast<std::size_t>(end - p) < length) return kInvalid;
  char32_t code = p[0] & (0x7fu >> length);
  for (unsigned i = 1; i < length; ++i) {
    if (!is_continuation(p[i])) return kInvalid;
    code = (code << 6) | (p[i] & 0x3fu);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kSmallest[length] || surrogate || code > 0x10ffff ? kInvalid : Utf8Char{code, length};
}

Utf8Char first_char(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  return decode_utf8(p, p + text.size());
}

Utf8Char last_char(std::string_view text) {
  for (unsigned length = 1; length <= std::min<std::size_t>(4, text.size()); ++length) {
    const Utf8Char c = first_char(text.substr(text.size() - length));
    if (c.code != kInvalidByte && c.length == length) return c;
  }
  return {kInvalidByte, 1};
}

std::size_t trailing_space(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Char c = last_char(text.substr(0, text.size() - size));
    if (!(UnicodeTable::instance().classes(c.code) & kSpace)) break;
    size += c.length;
  }
  return size;
}

}  // namespace warpwright::text
