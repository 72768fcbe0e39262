#include "cli/lines.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iostream>
#include <string>

#include "core/error.hpp"

namespace warpwright::cli {

void for_each_line(const std::filesystem::path& input,
                   const std::function<void(std::string_view line, std::int64_t number)>& visit) {
  std::ifstream file;
  if (!input.empty()) {
    file.open(input);
    if (!file || std::filesystem::is_directory(input))
      throw_system_error("read", input.string(), "give a text file");
  }
  std::istream& stream = input.empty() ? std::cin : file;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) visit(line, number);
  if (stream.bad())
    throw Error("reading failed", input.empty() ? "standard input" : input.string(), "try again");
}

std::vector<std::uint32_t> parse_ids(std::string_view line, std::int64_t number, std::size_t vocab_size) {
  std::vector<std::uint32_t> ids;
  while (true) {
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t\r")));
    if (line.empty()) return ids;
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), id);
    const auto length = static_cast<std::size_t>(end - line.data());
    const bool ends_well =
        length == line.size() || line[length] == ' ' || line[length] == '\t' || line[length] == '\r';
    if (error != std::errc() || !ends_well || id >= vocab_size) {
      throw Error(
          fmt::format("'{}' is not an id of a vocabulary of {}", line.substr(0, line.find(' ')), vocab_size),
          fmt::format("line {}", number), "give ids with spaces between");
    }
    ids.push_back(id);
    line.remove_prefix(length);
  }
}

}  // namespace warpwright::cli
