#include "cli/encoder_flags.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/cache_folder.hpp"
#include "cli/checks.hpp"
#include "cli/lines.hpp"
#include "cli/model_flags.hpp"
#include "cli/named.hpp"
#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "text/unicode.hpp"

namespace warpwright::cli {
namespace {

constexpr std::size_t kWindowTexts = 16384;
constexpr std::size_t kWindowBytes = std::size_t{32} << 20;
constexpr int kJsonDepth = 64;
constexpr Word<OverLimit> kOverLimit[] = {{"truncate", OverLimit::truncate}, {"refuse", OverLimit::refuse}};

// The text of a JSONL line, and its id.
void read_object(const std::string& field, InputText& line) {
  try {
    if (!text::is_utf8(line.text)) line.text = text::repair_utf8(line.text);
    nlohmann::json object = parse_json_members(line.text, {field, "id"}, "", kJsonDepth, "");
    line.text.clear();
    if (const auto id = object.find("id"); id != object.end()) line.id = *id;
    const auto text = object.find(field);
    if (text == object.end() || !text->is_string()) {
      line.error = fmt::format("is not a JSON object with a string under {}", quote(field));
    } else {
      line.text = std::move(text->get_ref<std::string&>());
    }
  } catch (const Error& error) {
    line.text.clear();
    line.error = error.problem();
  }
}

// Makes a cache folder that the user named, and refuses one that is empty and stays so.
void prepare_named_cache(const std::filesystem::path& folder) {
  create_folders(folder);
  if (folder.empty() || ::access(folder.c_str(), W_OK) == 0) return;
  const int reason = errno;
  if (!list_folder(folder).empty()) return;  // filled by someone who may write
  throw Error(fmt::format("cannot be written: {}", std::strerror(reason)), folder.string(),
              "give --weights-cache a folder that can be written, or none");
}

}  // namespace

UsageError naming_flag(const UsageError& error) {
  for (const auto& [option, flag] :
       {std::pair("max_length", "--max-length"), {"batch_tokens", "--batch-tokens"}}) {
    if (error.where() == option) return {error.problem(), flag, error.remedy()};
  }
  return error;
}

void EncoderFlags::add_to(CLI::App& command) {
  command.add_option("--model", model, "Folder of a BERT or RoBERTa model with its tokenizer")->required();
  command.add_option("--max-length", max_length, "Most tokens of a text; 0: as the model's files say")
      ->capture_default_str()
      ->check(at_least(0));
  command.add_option("--over-limit", over_limit, "For a longer text: truncate (cut off its end) or refuse")
      ->capture_default_str()
      ->check(one_of(names_of(kOverLimit)));
  command.add_option("--batch-tokens", batch_tokens, "Most tokens of a batch: sizes the memory")
      ->capture_default_str()
      ->check(at_least(1));
  add_dtype_flag(command, dtype, "fp16");
  command
      .add_option("--weights-cache", weights_cache,
                  "Folder where processes share the weights in the layout of a CPU's kernels; none, or auto "
                  "(warpwright in the user's cache folder)")
      ->capture_default_str();
  command.add_flag("--batch-invariant", batch_invariant, "The same bits whatever shares the batch; slower");
  command.add_flag("--special-as-text", special_as_text,
                   "Treat special tokens spelled out in a text, such as [SEP], as plain text");
  device.add_to(command);
}

EncoderOptions EncoderFlags::options() const {
  EncoderOptions options;
  options.weights.cache = weights_cache == "auto"   ? users_cache_folder()
                          : weights_cache == "none" ? std::filesystem::path()
                                                    : std::filesystem::path(weights_cache);
  if (weights_cache != "auto") prepare_named_cache(options.weights.cache);
  options.weights.dtype = compute_dtype(dtype);
  options.model.max_batch_tokens = batch_tokens;
  options.model.batch_invariant = batch_invariant;
  options.max_length = max_length;
  options.over_limit = named(kOverLimit, over_limit, "--over-limit").value;
  if (special_as_text) options.in_text = text::SpecialTokens::as_text;
  return options;
}

void TextInputFlags::add_to(CLI::App& command) {
  command.add_option(
      "--input", input,
      "One text per line, or JSONL if the name ends in .jsonl or .ndjson; default: standard input");
  command.add_flag("--jsonl", jsonl, "The input is JSONL whatever its name");
  command.add_option("--field", field, "Key of the text in JSONL objects")->capture_default_str();
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
