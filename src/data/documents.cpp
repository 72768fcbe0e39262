#include "data/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

bool is_jsonl(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson";
}

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), is_ascii_space);
}

// Whether the text ends in a character with Unicode's White_Space property.
bool ends_in_space(std::string_view text) {
  if (text.empty()) return true;
  if (is_ascii_space(text.back())) return true;
  // U+0085, U+00A0, U+1680, U+2028, U+2029, U+202F, U+205F, U+3000; U+2000 to U+200A follow.
  static constexpr std::array<std::string_view, 8> kSpaces = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                                              "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                                              "\xe2\x81\x9f", "\xe3\x80\x80"};
  if (std::any_of(kSpaces.begin(), kSpaces.end(),
                  [&](std::string_view space) { return text.ends_with(space); })) {
    return true;
  }
  const auto last = static_cast<unsigned char>(text.back());
  return last >= 0x80 && last <= 0x8a && text.substr(0, text.size() - 1).ends_with("\xe2\x80");
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0u) == 0x80u;
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    const bool hidden = entry->path().filename().native().front() == '.';
    if (hidden && entry->is_directory(error)) entry.disable_recursion_pending();
    if (!hidden && entry->is_regular_file(error)) files.push_back(entry->path());
    entry.increment(error);
  }
  if (error)
    throw Error(fmt::format("cannot be listed: {}", error.message()), folder.string(),
                "check its permissions");
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

}  // namespace

std::vector<InputFile> list_inputs(std::span<const fs::path> inputs) {
  std::vector<InputFile> files;
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (fs::is_directory(input, error)) {
      for (fs::path& path : files_below(input)) files.push_back({path, is_jsonl(path)});
    } else {
      files.push_back({input, is_jsonl(input)});
    }
  }
  return files;
}

void for_each_document(const MappedFile& file, bool jsonl,
                       const std::function<void(const RawDocument&)>& visit) {
  const auto bytes = file.bytes();
  std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!jsonl) {
    if (!rest.empty()) visit({rest, 0});
    return;
  }
  for (std::int64_t line = 1; !rest.empty(); ++line) {
    const std::size_t length = std::min(rest.find('\n'), rest.size());
    if (!is_blank(rest.substr(0, length))) visit({rest.substr(0, length), line});
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
}

std::string jsonl_text(const RawDocument& document, const std::string& field, const fs::path& path) {
  const auto fail = [&](const std::string& what) {
    throw Error(what, fmt::format("{}:{}", path.string(), document.line),
                "give an object a line with the text under one key (--field)");
  };
  nlohmann::json json = nlohmann::json::parse(document.bytes, nullptr, false);
  if (json.is_discarded()) fail("is not a JSON value in UTF-8");
  if (!json.is_object()) fail("is not a JSON object");
  const auto found = json.find(field);
  if (found == json.end()) fail(fmt::format("has no \"{}\"", field));
  if (!found->is_string()) fail(fmt::format("\"{}\" is not a string", field));
  return std::move(found->get_ref<std::string&>());
}

std::size_t cut_before(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  for (std::size_t cut = most; cut > 0; --cut) {
    if (is_ascii_space(text[cut]) && !ends_in_space(text.substr(0, cut))) return cut;
  }
  std::size_t cut = most;
  while (cut > 1 && most - cut < 3 && continues_character(text[cut])) --cut;
  return cut;
}

std::size_t tail_line(std::string_view text, double tail_fraction) {
  const auto wanted = static_cast<std::size_t>(static_cast<double>(text.size()) * (1.0 - tail_fraction));
  const std::size_t after = text.find('\n', std::min(wanted, text.size() - 1));
  if (after != std::string_view::npos && after + 1 < text.size()) return after + 1;
  const std::size_t before = text.substr(0, text.size() - 1).rfind('\n');
  return before == std::string_view::npos ? 0 : before + 1;
}

}  // namespace warpwright
