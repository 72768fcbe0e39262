#include "data/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/error.hpp"
#include "data/file_kind.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::size_t kMostLineBytes = std::size_t{256} << 20;
constexpr int kLineDepth = 64;

bool is_jsonl(const fs::path& path) {
  const fs::path extension = without_compression(path).extension();
  return extension == ".jsonl" || extension == ".ndjson";
}

// Appends up to kReadBytes to the text. Returns true if there may be more.
bool append(std::string& text, const ReadText& read) {
  const std::size_t size = text.size();
  text.resize(size + kReadBytes);
  const std::size_t got = read(std::span(text).subspan(size));
  text.resize(size + got);
  return got == kReadBytes;
}

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), is_ascii_space);
}

// True if the text is empty or ends in a character with Unicode's White_Space property.
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

// The kind of a folder entry that is neither a file nor a folder, else "".
std::string_view kind_of(const fs::directory_entry& entry) {
  const fs::file_status status = entry.status();  // of a link's target; throws if it cannot be examined
  if (status.type() == fs::file_type::not_found) return "link to nothing";
  if (status.type() == fs::file_type::directory) return entry.is_symlink() ? "link to a folder" : "";
  return status.type() == fs::file_type::regular ? "" : "pipe, socket or device";
}

// A file that has several names in a folder is read once: under its own name, else under the first link's.
void skip_other_names(std::vector<InputFile>& files) {
  std::set<fs::path> seen;
  for (const bool link : {false, true}) {
    for (InputFile& file : files) {
      std::error_code error;
      if (!file.skipped.empty() || fs::is_symlink(file.path, error) != link) continue;
      const fs::path place = fs::canonical(file.path, error);
      if (!error && !seen.insert(place).second) file.skipped = "link to a file that is read already";
    }
  }
}

std::vector<InputFile> files_below(const fs::path& folder) {
  std::vector<InputFile> files;
  bool has_links = false;
  try {
    for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
      const bool hidden = entry->path().filename().native().front() == '.';
      const bool is_folder = entry->symlink_status().type() == fs::file_type::directory;
      if (hidden && is_folder) entry.disable_recursion_pending();
      has_links = has_links || entry->is_symlink();
      if (!hidden && !is_folder) files.push_back({entry->path(), is_jsonl(entry->path()), kind_of(*entry)});
    }
  } catch (const fs::filesystem_error& error) {
    const fs::path where = error.path1().empty() ? folder : error.path1();
    throw Error(fmt::format("cannot be listed: {}", error.code().message()), where.string(),
                "check its permissions");
  }
  std::ranges::sort(
      files, {}, [](const InputFile& file) -> const auto& { return file.path.native(); });
  if (has_links) skip_other_names(files);
  return files;
}

// A text given twice could land in both the training and the validation split.
void require_each_once(const std::vector<InputFile>& files) {
  std::map<fs::path, const fs::path*> seen;
  for (const InputFile& file : files) {
    if (!file.skipped.empty()) continue;
    std::error_code error;
    const fs::path place = fs::canonical(file.path, error);
    if (error) continue;  // opening the file reports the reason
    const auto [other, is_new] = seen.emplace(place, &file.path);
    if (is_new) continue;
    const std::string twice =
        file.path == *other->second ? "" : fmt::format(", also as {}", other->second->string());
    throw UsageError(fmt::format("is given twice{}", twice), file.path.string(), "give each file once");
  }
}

// Visits all parts but the last, and returns that.
std::string_view visit_full_parts(std::string_view text, std::size_t most, const VisitPart& visit) {
  while (text.size() > most) {
    const std::size_t cut = cut_before(text, most);
    visit(text.substr(0, cut), false);
    text.remove_prefix(cut);
  }
  return text;
}

}  // namespace

std::vector<InputFile> list_inputs(std::span<const fs::path> inputs) {
  std::vector<InputFile> files;
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (fs::is_directory(input, error)) {
      for (InputFile& file : files_below(input)) files.push_back(std::move(file));
    } else {
      files.push_back({input, is_jsonl(input)});
    }
  }
  require_each_once(files);
  return files;
}

std::optional<std::string_view> reason_to_skip(const InputFile& input, bool binary) {
  if (!input.skipped.empty()) return input.skipped;
  if (input.jsonl || binary) return std::nullopt;
  TextStream stream(input.path);
  std::string sample(kKindSampleBytes, '\0');
  sample.resize(stream.read(sample));
  return kind_if_not_text(sample);
}

ReadText reader_of(TextStream& stream) {
  return [&stream](std::span<char> into) { return stream.read(into); };
}

ReadText reader_of(std::string_view text) {
  return [text](std::span<char> into) mutable {
    const std::size_t count = text.copy(into.data(), into.size());
    text.remove_prefix(count);
    return count;
  };
}

void for_each_jsonl_line(const ReadText& read, const fs::path& path,
                         const std::function<void(const RawDocument&)>& visit) {
  std::string buffer;
  std::size_t begin = 0, searched = 0;
  std::int64_t line = 1;
  const auto take = [&](std::size_t end) {
    const std::string_view text = std::string_view(buffer).substr(begin, end - begin);
    if (!is_blank(text)) visit({text, line});
  };
  for (bool more = true;;) {
    const std::size_t end = buffer.find('\n', searched);
    if (end != std::string::npos) {
      take(end);
      begin = searched = end + 1;
      ++line;
      continue;
    }
    if (!more) return take(buffer.size());
    buffer.erase(0, begin);
    begin = 0;
    searched = buffer.size();
    if (searched > kMostLineBytes) {
      throw Error(fmt::format("is a line of over {} MiB", kMostLineBytes >> 20),
                  fmt::format("{}:{}", path.string(), line), "write one JSON object per line");
    }
    more = append(buffer, read);
  }
}

void for_each_part(const ReadText& read, std::size_t most, const VisitPart& visit) {
  std::string buffer;
  for (bool more = true; more;) {
    more = append(buffer, read);
    const std::string_view rest = visit_full_parts(buffer, most, visit);
    if (!more && !rest.empty()) visit(rest, true);
    buffer.erase(0, buffer.size() - rest.size());
  }
}

void for_each_part(std::string_view text, std::size_t most, const VisitPart& visit) {
  const std::string_view rest = visit_full_parts(text, most, visit);
  if (!rest.empty()) visit(rest, true);
}

std::string jsonl_text(const RawDocument& document, const std::string& field, const fs::path& path) {
  const std::string where = fmt::format("{}:{}", path.string(), document.line),
                    remedy = "write one JSON object per line, with the text under one key (--field)";
  nlohmann::json object = parse_json_members(document.bytes, {field}, where, kLineDepth, remedy);
  const auto found = object.find(field);
  if (found == object.end()) throw Error(fmt::format("has no {}", quote(field)), where, remedy);
  if (!found->is_string()) throw Error(fmt::format("{} is not a string", quote(field)), where, remedy);
  return std::move(found->get_ref<std::string&>());
}

std::size_t cut_before(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  std::size_t boundary = 0;
  for (std::size_t cut = most; cut > 0; --cut) {
    if (!is_ascii_space(text[cut]) || ends_in_space(text.substr(0, cut))) continue;
    if (text[cut] == ' ' && static_cast<unsigned char>(text[cut - 1]) < 0x80) return cut;
    boundary = std::max(boundary, cut);
  }
  if (boundary > 0) return boundary;
  std::size_t cut = most;
  while (cut > 1 && most - cut < 3 && continues_character(text[cut])) --cut;
  return cut;
}

std::uint64_t tail_line(const ReadText& read, std::uint64_t size, double tail_fraction) {
  if (size == 0) return 0;
  const auto wanted =
      std::min(static_cast<std::uint64_t>(static_cast<double>(size) * (1.0 - tail_fraction)), size - 1);
  std::string chunk(kReadBytes, '\0');
  std::uint64_t line = 0, offset = 0;
  while (const std::size_t got = read(chunk)) {
    const std::string_view text = std::string_view(chunk).substr(0, got);
    for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
      const std::uint64_t next = offset + at + 1;
      if (next >= size) break;
      line = next;
      if (next > wanted) return line;
    }
    offset += got;
  }
  return line;
}

}  // namespace warpwright
