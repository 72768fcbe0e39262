// The alphabet of a regular expression: characters that it does not tell apart are one symbol.
//
// An expression sees a character only through its sets, such as \p{Lu} and [\r\n]. So a text may be matched
// as a string of symbols, of one byte each. Then every set is a set of bytes, the matcher needs no Unicode,
// and a byte outside well-formed UTF-8 can have the symbol of U+FFFD.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/character_set.hpp"
#include "text/paged_table.hpp"

namespace warpwright::text {

// The symbols that the sets tell apart: 0, 1, …, at most 254.
class SymbolTable {
 public:
  static constexpr std::size_t kMostSymbols = 255;
  static constexpr std::uint8_t kNoSymbol = 255;  // appears in no text

  // There are too many of them if count() is over kMostSymbols; then the table must not be used.
  explicit SymbolTable(const std::vector<CharacterSet>& sets);

  std::size_t count() const { return count_; }
  // The symbols of a set's members, in order.
  const std::vector<std::uint8_t>& members(std::size_t set) const { return members_[set]; }

  // Replaces `symbols` by those of the text's characters. Each byte outside well-formed UTF-8 is U+FFFD.
  void translate(std::string_view text, std::vector<std::uint8_t>& symbols) const;

 private:
  PagedTable partition(const std::vector<CharacterSet>& sets);

  std::vector<std::vector<std::uint8_t>> members_;
  std::size_t count_ = 0;
  PagedTable symbols_;
};

}  // namespace warpwright::text
