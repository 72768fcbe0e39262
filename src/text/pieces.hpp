// Cuts a text into the pieces within which tokens merge, by one pattern after the other: each pattern cuts
// the pieces of the one before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenize.hpp"

namespace warpwright::text {

// Ways in which the mark of a space (Llama's "▁") cuts a text.
enum class MarkCuts : std::uint8_t {
  none,
  each,  // before each mark
  run,   // before each run of marks
};

// The patterns and marks by which to cut, for any text.
struct CutRules {
  static constexpr std::size_t kMostPatterns = 8;

  std::vector<Pattern> patterns;        // at most kMostPatterns
  std::string mark;                     // not empty if it cuts
  MarkCuts mark_cuts = MarkCuts::none;  // comes before the patterns
};

// Walks over the pieces of one text.
class PieceCursor {
 public:
  // Both must outlive the cursor.
  PieceCursor(const CutRules& rules, std::string_view text) : rules_(rules), text_(text) {}

  // The end of the piece that starts at `begin`: 0, or the end returned before, and not the text's end.
  std::size_t end_of_piece(std::size_t begin) {
    std::string_view outer = text_;
    if (rules_.mark_cuts != MarkCuts::none) {
      if (begin == mark_end_) mark_end_ = mark_end(begin);
      outer = text_.substr(0, mark_end_);
    }
    for (std::size_t i = 0; i < rules_.patterns.size(); ++i) {
      if (begin == ends_[i]) ends_[i] = piece_end(rules_.patterns[i], outer, begin);
      outer = text_.substr(0, ends_[i]);
    }
    return outer.size();
  }

 private:
  std::size_t mark_end(std::size_t begin) const;

  const CutRules& rules_;
  std::string_view text_;
  std::size_t mark_end_ = 0;
  std::array<std::size_t, CutRules::kMostPatterns> ends_{};
};

}  // namespace warpwright::text
