#include "cli/lengths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

std::int64_t number(const std::string& text) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < 0 || value > (1 << 24)) {
    throw UsageError(fmt::format("{} is not a length", quote(text)), "--lengths",
                     "give lengths with commas, as 5,17x3 (17 three times), or @FILE with one a line");
  }
  return value;
}

}  // namespace

std::vector<std::int64_t> parse_lengths(std::string text) {
  constexpr std::uint64_t kMostBytes = 1 << 26;
  constexpr std::int64_t kMostTexts = 1 << 24;
  if (!text.empty() && text[0] == '@') text = read_file(text.substr(1), kMostBytes);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ',' || c == '\n' || c == '\r'; }, ' ');
  std::istringstream words(text);
  std::vector<std::int64_t> lengths;
  for (std::string word; words >> word;) {
    const std::size_t times = word.find('x');
    const std::int64_t length = number(word.substr(0, times));
    const std::int64_t count = times == std::string::npos ? 1 : number(word.substr(times + 1));
    if (static_cast<std::int64_t>(lengths.size()) + count > kMostTexts) {
      throw UsageError(fmt::format("lists more than {} texts", kMostTexts), "--lengths", "give fewer");
    }
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
  }
  if (std::ranges::count(lengths, 0) == std::ssize(lengths)) {
    throw UsageError("has no tokens", "--lengths", "give at least one length above 0");
  }
  return lengths;
}

}  // namespace warpwright::cli
