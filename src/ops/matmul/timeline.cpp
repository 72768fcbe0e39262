#include "ops/matmul/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace warpwright::ops::matmul {

double Timeline::overlap() const {
  double epilogues = 0, hidden = 0;
  for (const auto& groups : blocks) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const Stamps& mine : groups[g]) {
        epilogues += static_cast<double>(mine.end - mine.epilogue);
        for (std::size_t other = 0; other < groups.size(); ++other) {
          if (other == g) continue;
          for (const Stamps& theirs : groups[other]) {
            const long long both =
                std::min(mine.end, theirs.epilogue) - std::max(mine.epilogue, theirs.products);
            hidden += static_cast<double>(std::max(both, 0LL));
          }
        }
      }
    }
  }
  return epilogues > 0 ? hidden / epilogues : 0;
}

std::string Timeline::svg(std::size_t block) const {
  constexpr double kLeft = 70, kWidth = 900, kTop = 40, kRow = 34, kBar = 24;
  const auto& groups = blocks.at(block);
  long long first = 0, last = 0;
  bool any = false;
  for (const auto& tiles : groups) {
    for (const Stamps& s : tiles) {
      first = any ? std::min(first, s.products) : s.products;
      last = any ? std::max(last, s.end) : s.end;
      any = true;
    }
  }
  const auto x = [&](long long clock) {
    return kLeft +
           kWidth * static_cast<double>(clock - first) / static_cast<double>(std::max(last - first, 1LL));
  };
  const double height = kTop + kRow * static_cast<double>(groups.size()) + 46;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\">A block of the persistent schedule: {3:.0f} % of the epilogues pass while "
      "the other "
      "group multiplies</text>\n",
      kLeft + kWidth + 20, height, kLeft, 100 * overlap());
  const auto bar = [&](double y, long long from, long long to, std::string_view fill) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
                       x(from), y, x(to) - x(from), kBar, fill);
  };
  constexpr std::string_view kProducts = "#3b6ea8", kEpilogue = "#e0a030";
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double y = kTop + kRow * static_cast<double>(g);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">group {}</text>\n", y + 16, g);
    for (const Stamps& s : groups[g]) {
      bar(y, s.products, s.epilogue, kProducts);
      bar(y, s.epilogue, s.end, kEpilogue);
    }
  }
  const double y = height - 26;
  const double microseconds =
      clocks_per_second > 0 ? static_cast<double>(last - first) / clocks_per_second * 1e6 : 0;
  svg += fmt::format(
      "<rect x=\"{0}\" y=\"{1}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text x=\"{3}\" "
      "y=\"{4}\">products</text>\n"
      "<rect x=\"{5}\" y=\"{1}\" width=\"12\" height=\"12\" fill=\"{6}\"/><text x=\"{7}\" "
      "y=\"{4}\">epilogue</text>\n"
      "<text x=\"{8}\" y=\"{4}\" text-anchor=\"end\">{9} clocks, {10:.1f} µs at the highest "
      "clock</text>\n</svg>\n",
      kLeft, y, kProducts, kLeft + 18, y + 11, kLeft + 100, kEpilogue, kLeft + 118, kLeft + kWidth,
      last - first, microseconds);
  return svg;
}

}  // namespace warpwright::ops::matmul
