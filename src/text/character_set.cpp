#include "text/character_set.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "text/paged_table.hpp"

namespace warpwright::text {
namespace {

using Range = CharacterSet::Range;

struct NamedSet {
  std::string_view name;
  std::span<const Range> ranges;
};

#include "text/character_sets.inc"

// Sorted, with ranges that touch or overlap joined.
std::vector<Range> normalized(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace

CharacterSet::CharacterSet(std::vector<Range> ranges) : ranges_(normalized(std::move(ranges))) {}

std::optional<CharacterSet> CharacterSet::named(std::string_view name) {
  std::vector<Range> ranges;
  for (const NamedSet& set : kSets) {
    const bool is_in_group = name.size() == 1 && set.name.size() == 2 && set.name[0] == name[0];
    if (set.name == name || is_in_group) ranges.insert(ranges.end(), set.ranges.begin(), set.ranges.end());
  }
  if (ranges.empty()) return std::nullopt;
  return CharacterSet(std::move(ranges));
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  ranges_ = normalized(std::move(ranges_));
}

CharacterSet CharacterSet::complement() const {
  CharacterSet others;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) others.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kCodePoints) others.ranges_.push_back({next, kCodePoints - 1});
  return others;
}

CharacterSet CharacterSet::intersection(const CharacterSet& other) const {
  CharacterSet outside = complement();
  outside.add(other.complement());
  return outside.complement();
}

}  // namespace warpwright::text
