#include "text/bert_unicode.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/paged_table.hpp"

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
  char32_t parts[4];  // padded with zeros
};
struct LowercaseRange {  // first, first + step, … last
  char32_t first, last;
  unsigned step;
  int distance;
};

#include "text/bert_unicode.inc"

// The first range that ends at or after the code point.
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

const Decomposition* next_decomposition(char32_t code) {
  return std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                          [](const Decomposition& a, char32_t b) { return a.code < b; });
}

// Private bits next to the public ones: the decomposition or lowercase table has the code point.
constexpr std::uint8_t kDecomposes = 32, kHasLowercase = 64;
constexpr std::uint8_t kPublic = kDecomposes - 1;

template <class Range, std::size_t N, class F>
void for_each_code(const Range (&ranges)[N], F&& visit) {
  for (const Range& range : ranges) {
    for (char32_t code = range.first; code <= range.last; ++code) visit(range, code);
  }
}

PagedTable make_classes() {
  std::vector<std::uint8_t> values(kCodePoints, 0);
  for_each_code(kClasses, [&](const ClassRange& range, char32_t code) {
    values[code] = static_cast<std::uint8_t>(range.classes);
  });
  for_each_code(kLowercase, [&](const LowercaseRange&, char32_t code) { values[code] |= kHasLowercase; });
  for (const Decomposition& entry : kDecompositions) values[entry.code] |= kDecomposes;
  return PagedTable(values);
}

PagedTable make_combining_classes() {
  std::vector<std::uint8_t> values(kCodePoints, 0);
  for_each_code(kCombiningClasses,
                [&](const CombiningRange& range, char32_t code) { values[code] = range.combining_class; });
  return PagedTable(values);
}

const PagedTable& class_table() {
  static const PagedTable table = make_classes();
  return table;
}

}  // namespace

std::uint8_t classes(char32_t code) {
  return class_table()[code] & kPublic;
}

bool any_listed(char32_t first, char32_t last) {
  const Decomposition* entry = next_decomposition(first);
  return any_in(kClasses, first, last) || any_in(kCombiningClasses, first, last) ||
         any_in(kLowercase, first, last) || (entry != std::end(kDecompositions) && entry->code <= last);
}

std::uint8_t combining_class(char32_t code) {
  static const PagedTable table = make_combining_classes();
  return table[code];
}

std::span<const char32_t> decomposition(char32_t code) {
  if (!(class_table()[code] & kDecomposes)) return {};
  const Decomposition* entry = next_decomposition(code);
  return {entry->parts, std::find(std::begin(entry->parts), std::end(entry->parts), char32_t{0})};
}

char32_t lowercase(char32_t code) {
  if (!(class_table()[code] & kHasLowercase)) return code;
  const LowercaseRange* range = next_range(kLowercase, code);
  if ((code - range->first) % range->step != 0) return code;
  return code + static_cast<char32_t>(range->distance);
}

}  // namespace warpwright::text::bert
