#include "text/unicode.hpp"

#include <algorithm>
#include <map>

namespace warpwright::text {
namespace {

struct ClassRange {
  char32_t first, last;
  int classes;
};

constexpr ClassRange kRanges[] = {
#include "text/unicode_ranges.inc"
};

bool is_continuation(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

}  // namespace

const UnicodeTable& UnicodeTable::instance() {
  static const UnicodeTable table;
  return table;
}

UnicodeTable::UnicodeTable() {
  std::map<Page, std::uint16_t> known;
  const ClassRange* range = std::begin(kRanges);
  for (char32_t base = 0; base < kCodePoints; base += kPageSize) {
    Page page{};
    for (char32_t code = base; code < base + kPageSize; ++code) {
      while (range != std::end(kRanges) && range->last < code) ++range;
      if (range == std::end(kRanges)) break;
      if (range->first <= code) page[code - base] = static_cast<std::uint8_t>(range->classes);
    }
    const auto [entry, is_new] = known.try_emplace(page, static_cast<std::uint16_t>(pages_.size()));
    if (is_new) pages_.push_back(page);
    page_of_[base >> kPageBits] = entry->second;
  }
}

bool is_utf8(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = p + bytes.size();
  while (p < end) {
    const Utf8Char c = decode_utf8(p, end);
    if (c.code == kInvalidByte) return false;
    p += c.length;
  }
  return true;
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

}  // namespace warpwright::text
