#include "infer/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

constexpr std::uint64_t kMostJsonBytes = 1 << 20;
constexpr int kMostJsonDepth = 64;
constexpr const char* kPromptsRemedy = "use the file as sentence-transformers wrote it";

// Callers in C read names and prompts up to a NUL.
std::string text_in(const nlohmann::json& json, const std::string& what, const std::string& where) {
  if (!json.is_string()) throw Error(what + " is not a string", where, kPromptsRemedy);
  const std::string text = json.get<std::string>();
  if (text.find('\0') != std::string::npos) throw Error(what + " contains a NUL", where, "remove it");
  return text;
}

std::string names_of(const Prompts& prompts) {
  constexpr std::size_t kShown = 20;
  std::string names;
  for (std::size_t i = 0; i < prompts.named.size() && i < kShown; ++i) {
    names += (i == 0 ? "" : ", ") + quote(prompts.named[i].first);
  }
  if (prompts.named.size() > kShown) names += fmt::format(" and {} more", prompts.named.size() - kShown);
  return names;
}

}  // namespace

const std::string* Prompts::find(std::string_view name) const {
  const auto found = std::find_if(named.begin(), named.end(), [&](const auto& p) { return p.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

Prompts Prompts::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config_sentence_transformers.json";
  Prompts prompts;
  if (!path_exists(path)) return prompts;
  const std::string where = path.string();
  const nlohmann::json json =
      parse_json(read_file(path, kMostJsonBytes), where, kMostJsonDepth, kPromptsRemedy);
  if (!json.is_object()) throw Error("is not a JSON object", where, kPromptsRemedy);
  if (const auto found = json.find("prompts"); found != json.end() && !found->is_null()) {
    if (!found->is_object()) throw Error("\"prompts\" is not a JSON object", where, kPromptsRemedy);
    for (const auto& [name, text] : found->items()) {
      const std::string what = "the prompt " + quote(name);
      // null, as sentence-transformers writes a prompt that nobody set: nothing.
      prompts.named.emplace_back(text_in(name, "the name of " + what, where),
                                 text.is_null() ? "" : text_in(text, what, where));
    }
  }
  if (const auto found = json.find("default_prompt_name"); found != json.end() && !found->is_null()) {
    prompts.default_name = text_in(*found, "\"default_prompt_name\"", where);
    if (!prompts.find(*prompts.default_name)) {
      throw Error("\"default_prompt_name\" is " + quote(*prompts.default_name) + ", which no prompt has",
                  where, "name one of \"prompts\", or remove it");
    }
  }
  return prompts;
}

std::string_view Prompts::text_of(const PromptChoice& choice) const {
  if (choice.text) return *choice.text;
  if (!choice.name) return default_name ? std::string_view(*find(*default_name)) : std::string_view();
  if (const std::string* found = find(*choice.name)) return *found;
  throw UsageError(
      "no prompt is called " + quote(*choice.name), "prompt name",
      named.empty() ? "the model has no prompts: give the text itself" : "the model has " + names_of(*this));
}

}  // namespace warpwright
