// Prompts: the text that a model expects before each input ("query: "), from sentence-transformers'
// config_sentence_transformers.json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warpwright {

// The prompt that a call puts before its texts. If both are empty, it is the model's default, if any.
struct PromptChoice {
  std::optional<std::string> text;  // the prompt itself, "" for none
  std::optional<std::string> name;  // of one of the model's prompts; ignored if there is a text
};

struct Prompts {
  std::vector<std::pair<std::string, std::string>> named;  // name and text, by name
  std::optional<std::string> default_name;                 // one of these names

  // Reads those of a model's folder; none if it has no such file. Throws Error, naming the file, for prompts
  // that are not text and a default that is none of them.
  static Prompts read(const std::filesystem::path& folder);
  // Throws UsageError, which lists the names, for a name that is none of them.
  std::string_view text_of(const PromptChoice& choice) const;

 private:
  const std::string* find(std::string_view name) const;  // null if there is none
};

}  // namespace warpwright
