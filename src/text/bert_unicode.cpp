#include "text/bert_unicode.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <vector>

namespace warpwright::text::bert {
namespace {

struct ClassRange {
  char32_t first, last;
  int classes;
};
struct CombiningRange {
  char32_t first, last;
  std::uint8_t combining_class;
};
struct Decomposition {
  char32_t code;
  char32_t parts[4];  // zeros after the last
};
struct LowercaseRange {  // first, first + step, … last
  char32_t first, last;
  unsigned step;
  int distance;
};

#include "text/bert_unicode.inc"

// The first range that does not end before the code point.
template <class Range, std::size_t N>
const Range* next_range(const Range (&ranges)[N], char32_t code) {
  return std::lower_bound(std::begin(ranges), std::end(ranges), code,
                          [](const Range& a, char32_t b) { return a.last < b; });
}

template <class Range, std::size_t N>
bool any_in(const Range (&ranges)[N], char32_t first, char32_t last) {
  const Range* range = next_range(ranges, first);
  return range != std::end(ranges) && range->first <= last;
}

// The range that holds the code point, or null.
template <class Range, std::size_t N>
const Range* find_range(const Range (&ranges)[N], char32_t code) {
  const Range* range = next_range(ranges, code);
  return range != std::end(ranges) && range->first <= code ? range : nullptr;
}

const Decomposition* next_decomposition(char32_t code) {
  return std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                          [](const Decomposition& a, char32_t b) { return a.code < b; });
}

// Classes by code point, in pages of which equal ones are kept once.
class ClassTable {
 public:
  static constexpr char32_t kCodePoints = 0x110000;

  ClassTable() {
    std::map<Page, std::uint16_t> known;
    for (char32_t base = 0; base < kCodePoints; base += kPageSize) {
      Page page{};
      const ClassRange* range = next_range(kClasses, base);
      for (; range != std::end(kClasses) && range->first < base + kPageSize; ++range) {
        const char32_t first = std::max(range->first, base),
                       last = std::min<char32_t>(range->last, base + kPageSize - 1);
        std::fill(page.begin() + (first - base), page.begin() + (last - base) + 1,
                  static_cast<std::uint8_t>(range->classes));
      }
      const auto [entry, is_new] = known.try_emplace(page, static_cast<std::uint16_t>(pages_.size()));
      if (is_new) pages_.push_back(page);
      page_of_[base / kPageSize] = entry->second;
    }
  }

  std::uint8_t operator[](char32_t code) const {
    return code < kCodePoints ? pages_[page_of_[code / kPageSize]][code % kPageSize] : 0;
  }

 private:
  static constexpr char32_t kPageSize = 256;
  using Page = std::array<std::uint8_t, kPageSize>;

  std::array<std::uint16_t, kCodePoints / kPageSize> page_of_{};
  std::vector<Page> pages_;
};

}  // namespace

std::uint8_t classes(char32_t code) {
  static const ClassTable table;
  return table[code];
}

bool any_listed(char32_t first, char32_t last) {
  const Decomposition* entry = next_decomposition(first);
  return any_in(kClasses, first, last) || any_in(kCombiningClasses, first, last) ||
         any_in(kLowercase, first, last) || (entry != std::end(kDecompositions) && entry->code <= last);
}

std::uint8_t combining_class(char32_t code) {
  const CombiningRange* range = find_range(kCombiningClasses, code);
  return range ? range->combining_class : 0;
}

std::span<const char32_t> decomposition(char32_t code) {
  const Decomposition* entry = next_decomposition(code);
  if (entry == std::end(kDecompositions) || entry->code != code) return {};
  return {entry->parts, std::find(std::begin(entry->parts), std::end(entry->parts), char32_t{0})};
}

char32_t lowercase(char32_t code) {
  const LowercaseRange* range = find_range(kLowercase, code);
  if (!range || (code - range->first) % range->step != 0) return code;
  return code + static_cast<char32_t>(range->distance);
}

}  // namespace warpwright::text::bert
