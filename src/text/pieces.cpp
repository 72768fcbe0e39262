#include "text/pieces.hpp"

#include <algorithm>

namespace warpwright::text {

// The first pattern that could cut there decides, because each later one sees the pieces of those before.
bool CutRules::patterns_cut_at_spaces() const {
  const auto joins_spaces = [](const Cut& cut) {
    return cut == Cut(Pattern::digits) || cut == Cut(Pattern::each_digit);
  };
  const auto first = std::find_if_not(patterns.begin(), patterns.end(), joins_spaces);
  return first != patterns.end() && std::holds_alternative<Pattern>(*first);
}

bool CutRules::may_be_piece(std::string_view bytes) const {
  const bool has_expression = std::any_of(patterns.begin(), patterns.end(), [](const Cut& cut) {
    return std::holds_alternative<SplitExpression>(cut);
  });
  return has_expression || PieceCursor(*this, bytes).end_of_piece(0) == bytes.size();
}

std::size_t PieceCursor::mark_end(std::size_t begin) const {
  const std::string& mark = rules_.mark;
  const auto is_mark = [&](std::size_t at) { return text_.substr(at, mark.size()) == mark; };
  std::size_t from = begin;
  if (rules_.mark_cuts == MarkCuts::each) {
    from += is_mark(begin) ? mark.size() : 0;
  } else {
    while (is_mark(from)) from += mark.size();
  }
  return std::min(text_.find(mark, from), text_.size());
}

// The end of the piece of the expression with this index. It sees only the outer piece.
std::size_t PieceCursor::expression_end(std::size_t index, std::string_view outer, std::size_t begin,
                                        bool outer_starts) {
  std::unique_ptr<ExpressionWalk>& walk = walks_[index];
  if (!walk) {
    const SplitExpression& expression = std::get<SplitExpression>(rules_.patterns[index]);
    walk.reset(new ExpressionWalk{0, SplitExpression::Cursor(expression)});
  }
  if (outer_starts) {
    walk->begin = begin;
    walk->cursor.start(outer.substr(begin), begin);
  }
  return walk->begin + walk->cursor.next_end();
}

}  // namespace warpwright::text
