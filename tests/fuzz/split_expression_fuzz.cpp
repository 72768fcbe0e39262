// Any bytes up to a NUL as the expression of a Split, and any bytes after it as text, give an Error or pieces
// that are not empty and together are the text. Cut again, they are the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "text/split_expression.hpp"

using namespace warpwright::text;

namespace {

void require(bool fact) {
  if (!fact) std::abort();
}

std::vector<std::size_t> ends_of(SplitExpression::Cursor& cursor, std::string_view text) {
  std::vector<std::size_t> ends;
  cursor.start(text, 0);
  for (std::size_t end = 0; end < text.size(); ends.push_back(end)) {
    const std::size_t begin = end;
    end = cursor.next_end();
    require(end > begin && end <= text.size());
  }
  return ends;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = std::min(bytes.find('\0'), size);
  const std::string_view text = bytes.substr(std::min(nul + 1, size));
  try {
    const SplitExpression expression(std::string(bytes.substr(0, nul)), Uncovered::piece, "field", "fuzz");
    SplitExpression::Cursor cursor(expression), again(expression);
    require(ends_of(cursor, text) == ends_of(again, text));
  } catch (const warpwright::Error&) {
  }
  return 0;
}
