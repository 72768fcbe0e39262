#include "cli/text_input.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "cli/lines.hpp"
#include "core/error.hpp"
#include "runtime/json.hpp"
#include "text/unicode.hpp"

namespace warpwright::cli {
namespace {

constexpr std::size_t kWindowTexts = 16384;
constexpr std::size_t kWindowBytes = std::size_t{32} << 20;
constexpr int kJsonDepth = 64;

// The text of a JSONL line, and its id.
void read_object(const std::string& field, InputText& line) {
  try {
    if (!text::is_utf8(line.text)) line.text = text::repair_utf8(line.text);
    nlohmann::json object = parse_json_members(line.text, {field, "id"}, "", kJsonDepth, "");
    line.text.clear();
    if (const auto id = object.find("id"); id != object.end()) line.id = *id;
    const auto text = object.find(field);
    if (text == object.end() || !text->is_string()) {
      line.error = fmt::format("is not a JSON object with a string under {} (--field)", quote(field));
    } else {
      line.text = std::move(text->get_ref<std::string&>());
    }
  } catch (const Error& error) {
    line.text.clear();
    line.error = error.problem();
  }
}

}  // namespace

CLI::Option* TextInputFlags::add_to(CLI::App& command, const std::string& description) {
  CLI::Option* option = command.add_option("--input", input, description);
  command.add_flag("--jsonl", jsonl, "The input is JSONL whatever its name");
  command.add_option("--field", field, "Key of the text in JSONL objects")->capture_default_str();
  return option;
}

std::string TextInputFlags::name() const {
  return input.empty() || input == "-" ? "standard input" : input.string();
}

std::uint64_t TextInputFlags::size() const {
  struct stat status {};
  const int failed = input.empty() ? ::fstat(STDIN_FILENO, &status) : ::stat(input.c_str(), &status);
  return failed == 0 && S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
}

void TextInputFlags::for_each_window(const std::function<void(const TextWindow&)>& visit) const {
  const bool objects = jsonl || input.extension() == ".jsonl" || input.extension() == ".ndjson";
  TextWindow window;
  const auto flush = [&] {
    if (!window.texts.empty()) visit(window);
    window = {.begin = window.end, .end = window.end};
  };
  const auto add = [&](std::string_view line, std::int64_t number) {
    window.end += line.size() + 1;
    if (objects && line.find_first_not_of(" \t") == std::string_view::npos) return;
    window.texts.push_back({.line = number, .text = std::string(line)});
    if (objects) read_object(field, window.texts.back());
    if (window.texts.size() == kWindowTexts || window.end - window.begin >= kWindowBytes) flush();
  };
  for_each_line(input, add, stream ? std::function<void()>(flush) : nullptr);
  flush();
}

}  // namespace warpwright::cli
