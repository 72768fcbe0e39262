#include "text/symbol_table.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// The first code points of stretches that no set divides, and the end.
std::vector<char32_t> boundaries_of(const std::vector<CharacterSet>& sets) {
  std::vector<char32_t> boundaries = {0, kCodePoints};
  for (const CharacterSet& set : sets) {
    for (const CharacterSet::Range& range : set.ranges()) {
      boundaries.push_back(range.first);
      boundaries.push_back(range.last + 1);
    }
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  return boundaries;
}

// For each stretch a text with a character for each set: '1' if the set has the stretch.
std::vector<std::string> memberships_of(const std::vector<CharacterSet>& sets,
                                        const std::vector<char32_t>& boundaries) {
  std::vector<std::string> memberships(boundaries.size() - 1, std::string(sets.size(), '0'));
  for (std::size_t set = 0; set < sets.size(); ++set) {
    auto stretch = boundaries.begin();
    for (const CharacterSet::Range& range : sets[set].ranges()) {
      stretch = std::lower_bound(stretch, boundaries.end(), range.first);
      for (; *stretch <= range.last; ++stretch) {
        memberships[static_cast<std::size_t>(stretch - boundaries.begin())][set] = '1';
      }
    }
  }
  return memberships;
}

}  // namespace

SymbolTable::SymbolTable(const std::vector<CharacterSet>& sets)
    : members_(sets.size()), symbols_(partition(sets)) {}

PagedTable SymbolTable::partition(const std::vector<CharacterSet>& sets) {
  const std::vector<char32_t> boundaries = boundaries_of(sets);
  const std::vector<std::string> memberships = memberships_of(sets, boundaries);
  std::map<std::string_view, std::uint8_t> known;
  std::vector<std::uint8_t> values(kCodePoints);
  for (std::size_t i = 0; i < memberships.size(); ++i) {
    const auto symbol = static_cast<std::uint8_t>(known.size());
    const auto [entry, is_new] = known.try_emplace(memberships[i], symbol);
    std::fill(values.begin() + boundaries[i], values.begin() + boundaries[i + 1], entry->second);
    for (std::size_t set = 0; is_new && set < sets.size(); ++set) {
      if (memberships[i][set] == '1') members_[set].push_back(symbol);
    }
  }
  count_ = known.size();
  return PagedTable(values);
}

void SymbolTable::translate(std::string_view text, std::vector<std::uint8_t>& symbols) const {
  symbols.resize(text.size());
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = p + text.size();
  std::uint8_t* out = symbols.data();
  while (p < end) {
    const Utf8Char c = decode_utf8(p, end);
    *out++ = symbols_[c.code == kInvalidByte ? kReplacement : c.code];
    p += c.length;
  }
  symbols.resize(static_cast<std::size_t>(out - symbols.data()));
}

}  // namespace warpwright::text
