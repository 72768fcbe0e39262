// Sets of code points, as the classes of regular expressions need them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace warpwright::text {

class CharacterSet {
 public:
  struct Range {
    char32_t first, last;
    bool operator==(const Range&) const = default;
  };

  CharacterSet() = default;
  explicit CharacterSet(std::vector<Range> ranges);  // in any order

  // The set that a regular expression knows by this name: a general category ("Lu"), all categories with this
  // letter ("L"), a script ("Han"), or "Word" and "Space", which are \w and \s. Nothing if there is none.
  // The members are those of Hugging Face tokenizers 0.23.3 (tools/make_character_sets.py).
  static std::optional<CharacterSet> named(std::string_view name);

  void add(const CharacterSet& other);
  CharacterSet complement() const;
  CharacterSet intersection(const CharacterSet& other) const;

  // Sorted. No two of them touch.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const CharacterSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace warpwright::text
