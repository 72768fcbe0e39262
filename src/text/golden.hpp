// Reads the goldens written by tools/make_goldens.py, for the tests of this folder.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/file.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::text {

inline std::filesystem::path golden_folder() {
  return WARPWRIGHT_TEXT_GOLDEN;
}

struct GoldenCase {
  std::string text;
  std::vector<std::string> pieces;
  std::vector<TokenId> ids, gpt2_ids;
};

inline std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const nlohmann::json& c :
       nlohmann::json::parse(read_file(golden_folder() / "strings.json", 1 << 20))) {
    cases.push_back({c["text"], c["pieces"], c["ids"], c["gpt2_ids"]});
  }
  return cases;
}

// The folder of GPT-2's vocabulary: $WARPWRIGHT_GPT2_TOKENIZER, or shared/data/gpt2 next to the checkout or
// its parent.
inline std::optional<std::filesystem::path> gpt2_folder() {
  std::vector<std::filesystem::path> places;
  if (const char* named = std::getenv("WARPWRIGHT_GPT2_TOKENIZER")) places.emplace_back(named);
  const std::filesystem::path checkout = golden_folder().parent_path().parent_path().parent_path();
  places.push_back(checkout.parent_path() / "shared/data/gpt2");
  places.push_back(checkout.parent_path().parent_path() / "shared/data/gpt2");
  for (const std::filesystem::path& place : places) {
    if (std::filesystem::exists(place / "vocab.json") || std::filesystem::exists(place / "tokenizer.json"))
      return place;
  }
  return std::nullopt;
}

}  // namespace warpwright::text
