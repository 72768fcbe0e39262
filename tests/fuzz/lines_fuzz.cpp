// Any bytes as a file of lines: the file is refused because it has another format, or all its lines are
// returned, NULs included, without the "\r" before a line's end. Each line is a list of ids in the vocabulary
// or an Error.
#include <cstdlib>
#include <string>

#include "cli/lines.hpp"
#include "core/error.hpp"
#include "fuzz_file.hpp"

using namespace warpwright;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kVocabulary = 50257;
  const auto require = [](bool fact) {
    if (!fact) std::abort();
  };
  const FuzzFile file(data, size);
  std::string whole;
  const auto take = [&](std::string_view line, std::int64_t number) {
    require(line.find('\n') == std::string_view::npos);
    if (number > 1) whole += '\n';
    whole += line;
    try {
      for (const std::uint32_t id : cli::parse_ids(line, number, kVocabulary)) require(id < kVocabulary);
    } catch (const Error& error) {
      require(std::string_view(error.what()).size() < 5000);
    }
  };
  try {
    cli::for_each_line(file.path(), take);
  } catch (const Error& error) {
    require(error.problem().starts_with("is not text") && whole.empty());
    return 0;
  }
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::string expected;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool ends_line = i + 1 < bytes.size() && bytes[i + 1] == '\n';
    if (bytes[i] != '\r' || !ends_line) expected += bytes[i];
  }
  if (expected.ends_with('\n')) expected.pop_back();  // it ends the last line
  require(whole == expected);
  return 0;
}
