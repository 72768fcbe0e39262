// One byte per code point, in pages. Equal pages are stored once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace warpwright::text {

inline constexpr char32_t kCodePoints = 0x110000;

class PagedTable {
 public:
  // The values of all code points.
  explicit PagedTable(const std::vector<std::uint8_t>& values) {
    std::map<Page, std::uint16_t> known;
    for (char32_t base = 0; base < kCodePoints; base += kPageSize) {
      Page page;
      std::copy_n(values.begin() + base, kPageSize, page.begin());
      const auto [entry, is_new] = known.try_emplace(page, static_cast<std::uint16_t>(pages_.size()));
      if (is_new) pages_.push_back(page);
      page_of_[base / kPageSize] = entry->second;
    }
  }

  // The value of a code point; 0 beyond U+10FFFF.
  std::uint8_t operator[](char32_t code) const {
    return code < kCodePoints ? pages_[page_of_[code / kPageSize]][code % kPageSize] : 0;
  }

 private:
  static constexpr char32_t kPageSize = 256;
  using Page = std::array<std::uint8_t, kPageSize>;

  std::array<std::uint16_t, kCodePoints / kPageSize> page_of_{};
  std::vector<Page> pages_;
};

}  // namespace warpwright::text
