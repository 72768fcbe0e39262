// Cuts a text into the pieces within which tokens merge, by one pattern after the other: each pattern cuts
// the pieces of the one before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/pretokenize.hpp"
#include "text/split_expression.hpp"

namespace warpwright::text {

// Ways in which the mark of a space (Llama's "▁") cuts a text.
enum class MarkCuts : std::uint8_t {
  none,
  each,  // before each mark
  run,   // before each run of marks
};

// A known pattern, which is an automaton, or any other regular expression.
using Cut = std::variant<Pattern, SplitExpression>;

// The patterns and marks by which to cut, for any text.
struct CutRules {
  static constexpr std::size_t kMostPatterns = 8;

  std::vector<Cut> patterns;            // at most kMostPatterns
  std::string mark;                     // not empty if it cuts
  MarkCuts mark_cuts = MarkCuts::none;  // comes before the patterns

  // True if the patterns cut each text before a space that follows an ASCII character other than white space,
  // whatever else it holds. So the two sides can be cut by themselves.
  bool patterns_cut_at_spaces() const;

  // True if these bytes may be a piece of some text. With an expression any may be.
  bool may_be_piece(std::string_view bytes) const;
};

// Walks over the pieces of one text.
class PieceCursor {
 public:
  // Both must outlive the cursor.
  PieceCursor(const CutRules& rules, std::string_view text) : rules_(rules), text_(text) {}

  // The end of the piece that starts at `begin`: 0, or the end returned before, and not the text's end.
  std::size_t end_of_piece(std::size_t begin) {
    std::string_view outer = text_;
    bool outer_starts = begin == 0;
    if (rules_.mark_cuts != MarkCuts::none) {
      outer_starts = begin == mark_end_;
      if (outer_starts) mark_end_ = mark_end(begin);
      outer = text_.substr(0, mark_end_);
    }
    for (std::size_t i = 0; i < rules_.patterns.size(); ++i) {
      const bool starts = begin == ends_[i];
      if (starts) {
        const Pattern* known = std::get_if<Pattern>(&rules_.patterns[i]);
        ends_[i] = known ? piece_end(*known, outer, begin) : expression_end(i, outer, begin, outer_starts);
      }
      outer_starts = starts;
      outer = text_.substr(0, ends_[i]);
    }
    return outer.size();
  }

 private:
  struct ExpressionWalk {
    std::size_t begin;  // of the outer piece
    SplitExpression::Cursor cursor;
  };

  std::size_t mark_end(std::size_t begin) const;
  std::size_t expression_end(std::size_t index, std::string_view outer, std::size_t begin, bool outer_starts);

  const CutRules& rules_;
  std::string_view text_;
  std::size_t mark_end_ = 0;
  std::array<std::size_t, CutRules::kMostPatterns> ends_{};
  std::array<std::unique_ptr<ExpressionWalk>, CutRules::kMostPatterns> walks_;  // of expressions
};

}  // namespace warpwright::text
