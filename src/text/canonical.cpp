#include "text/canonical.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <tuple>
#include <vector>

#include "text/bert_unicode.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

struct Pair {
  char32_t first, second, composed;
};

constexpr Pair kPairs[] = {
#include "text/nfc_pairs.inc"
};

// Hangul syllables: The Unicode Standard, section 3.12.
constexpr char32_t kFirstHangul = 0xac00, kLeadings = 19, kVowels = 21, kTrailings = 28;
constexpr char32_t kLeading = 0x1100, kVowel = 0x1161, kBeforeTrailing = 0x11a7;

char32_t composed_hangul(char32_t first, char32_t second) {
  if (first >= kLeading && first < kLeading + kLeadings && second >= kVowel && second < kVowel + kVowels) {
    return kFirstHangul + ((first - kLeading) * kVowels + (second - kVowel)) * kTrailings;
  }
  const bool open = is_hangul_syllable(first) && (first - kFirstHangul) % kTrailings == 0;
  if (open && second > kBeforeTrailing && second < kBeforeTrailing + kTrailings) {
    return first + (second - kBeforeTrailing);
  }
  return 0;
}

// A bit per code point. A set bit says that the character may change in NFC, or compose with or be moved
// before an earlier one. A character without the bit begins a stretch that NFC changes on its own.
class UnstableSet {
 public:
  UnstableSet() : bits_(kCodePoints / 64) {
    for (char32_t code = 0; code < kCodePoints; ++code) {
      if (bert::combining_class(code) != 0 || !bert::decomposition(code).empty()) set(code);
    }
    // A character that decomposes and composes again is stable by itself, unless it combines with others.
    for (const Pair& pair : kPairs) {
      if (bert::combining_class(pair.composed) == 0) clear(pair.composed);
    }
    for (const Pair& pair : kPairs) set(pair.second);
    for (char32_t i = 0; i < kVowels; ++i) set(kVowel + i);
    for (char32_t i = 1; i < kTrailings; ++i) set(kBeforeTrailing + i);
    for (const Pair& pair : kPairs) {
      if (contains(bert::decomposition(pair.composed)[0])) set(pair.composed);
    }
  }
  bool contains(char32_t code) const { return code < kCodePoints && (bits_[code / 64] >> (code % 64) & 1); }

 private:
  void set(char32_t code) { bits_[code / 64] |= std::uint64_t{1} << (code % 64); }
  void clear(char32_t code) { bits_[code / 64] &= ~(std::uint64_t{1} << (code % 64)); }

  std::vector<std::uint64_t> bits_;
};

bool is_unstable(char32_t code) {
  static const UnstableSet set;
  return set.contains(code);
}

constexpr char32_t kFirstUnstable = 0x300;

// Finds the first unstable character at or after `p`. `before` receives the start of the stable character
// just before it, or its own start if there is none.
const unsigned char* find_unstable(const unsigned char* p, const unsigned char* end,
                                   const unsigned char*& before) {
  before = p;
  while (p < end) {
    if (*p < 0x80) {
      before = p++;
      continue;
    }
    const Utf8Char c = decode_utf8(p, end);
    if (c.code >= kFirstUnstable && is_unstable(c.code)) return p;
    before = c.code == kInvalidByte ? p + 1 : p;
    p += c.length;
  }
  return end;
}

}  // namespace

bool is_hangul_syllable(char32_t code) {
  return code >= kFirstHangul && code < kFirstHangul + kLeadings * kVowels * kTrailings;
}

void append_decomposed(std::u32string& text, char32_t code) {
  if (is_hangul_syllable(code)) {
    const char32_t index = code - kFirstHangul;
    text += kLeading + index / (kVowels * kTrailings);
    text += kVowel + index / kTrailings % kVowels;
    if (index % kTrailings != 0) text += kBeforeTrailing + index % kTrailings;
    return;
  }
  const std::span<const char32_t> parts = bert::decomposition(code);
  if (parts.empty()) {
    text += code;
  } else {
    text.append(parts.begin(), parts.end());
  }
}

void put_in_canonical_order(std::u32string& text) {
  const auto is_starter = [](char32_t code) { return bert::combining_class(code) == 0; };
  for (auto run = text.begin(); run != text.end();) {
    run = std::find_if_not(run, text.end(), is_starter);
    const auto end = std::find_if(run, text.end(), is_starter);
    std::stable_sort(
        run, end, [](char32_t a, char32_t b) { return bert::combining_class(a) < bert::combining_class(b); });
    run = end;
  }
}

char32_t composed(char32_t first, char32_t second) {
  if (const char32_t syllable = composed_hangul(first, second)) return syllable;
  const Pair* pair = std::lower_bound(
      std::begin(kPairs), std::end(kPairs), std::pair(first, second),
      [](const Pair& a, const auto& b) { return std::tie(a.first, a.second) < std::tie(b.first, b.second); });
  const bool found = pair != std::end(kPairs) && pair->first == first && pair->second == second;
  return found ? pair->composed : 0;
}

// A character composes with the last starter before it unless a character between them blocks it: one that
// is a starter, or whose class is not lower.
void compose(std::u32string& text) {
  constexpr std::size_t kNone = std::u32string::npos;
  std::size_t starter = kNone, count = 0;
  unsigned last_class = 0;  // of the character kept after the starter; 0: none yet
  for (const char32_t code : text) {
    const unsigned combining = bert::combining_class(code);
    if (starter != kNone && (count == starter + 1 || last_class < combining)) {
      if (const char32_t both = composed(text[starter], code)) {
        text[starter] = both;
        continue;
      }
    }
    if (combining == 0) starter = count;
    last_class = combining;
    text[count++] = code;
  }
  text.resize(count);
}

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  const auto* begin = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* const end = begin + text.size();
  const unsigned char* before = nullptr;
  const unsigned char* p = find_unstable(begin, end, before);
  if (p == end) return text;
  buffer.clear();
  const unsigned char* copied = begin;
  std::u32string stretch;
  while (p < end) {
    buffer.append(reinterpret_cast<const char*>(copied), static_cast<std::size_t>(before - copied));
    stretch.clear();
    bool first = true;
    for (p = before; p < end;) {  // one stable character, if there is one, and the unstable ones after it
      const Utf8Char c = decode_utf8(p, end);
      if (c.code == kInvalidByte || (!first && !is_unstable(c.code))) break;
      append_decomposed(stretch, c.code);
      p += c.length;
      first = false;
    }
    put_in_canonical_order(stretch);
    compose(stretch);
    for (const char32_t code : stretch) append_utf8(code, buffer);
    copied = p;
    p = find_unstable(p, end, before);
  }
  buffer.append(reinterpret_cast<const char*>(copied), static_cast<std::size_t>(end - copied));
  return buffer;
}

}  // namespace warpwright::text
