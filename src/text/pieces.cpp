#include "text/pieces.hpp"

#include <algorithm>

namespace warpwright::text {

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

}  // namespace warpwright::text
