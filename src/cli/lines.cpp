#include "cli/lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "core/error.hpp"
#include "data/file_kind.hpp"
#include "runtime/file.hpp"

namespace warpwright::cli {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 16;
constexpr std::size_t kMostLineBytes = std::size_t{256} << 20;

// Any other error belongs to one line and is reported there.
void refuse_other_formats(std::string_view beginning, const std::filesystem::path& path) {
  const auto format = known_format(beginning);
  if (!format) return;
  throw Error(fmt::format("is not text ({})", *format), path.string(),
              "give text; `zcat` and `zstdcat` decompress, `iconv` converts from UTF-16");
}

// Files of other systems end their lines with "\r\n".
std::string_view without_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

}  // namespace

void for_each_line(const std::filesystem::path& input,
                   const std::function<void(std::string_view line, std::int64_t number)>& visit,
                   const std::function<void()>& before_read) {
  FileReader file = input.empty() || input == "-" ? FileReader::standard_input() : FileReader(input);
  std::vector<char> chunk(kChunkBytes);
  std::string begun;  // a line whose end has not arrived yet
  std::int64_t number = 1;
  const auto read = [&] {
    if (before_read) before_read();
    return file.read(chunk);
  };
  while (const std::size_t got = read()) {
    std::string_view rest(chunk.data(), got);
    if (number == 1 && begun.empty()) refuse_other_formats(rest, file.path());
    for (std::size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      begun += rest.substr(0, end);
      visit(without_return(begun), number++);
      begun.clear();
    }
    begun += rest;
    if (begun.size() > kMostLineBytes) {
      throw Error(fmt::format("line {} is longer than {} MiB", number, kMostLineBytes >> 20),
                  file.path().string(), "check that it is text, and end its lines");
    }
  }
  if (!begun.empty()) visit(begun, number);
}

std::vector<std::uint32_t> parse_ids(std::string_view line, std::int64_t number, std::size_t vocab_size) {
  std::vector<std::uint32_t> ids;
  while (true) {
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
    if (line.empty()) return ids;
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), id);
    const auto length = static_cast<std::size_t>(end - line.data());
    const bool ends_well = length == line.size() || line[length] == ' ' || line[length] == '\t';
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
