// Shared by `embed`, `rank` and `generate`: texts read from lines or JSONL.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace warpwright::cli {

// A line of the input.
struct InputText {
  std::int64_t line = 0;  // counts from 1
  std::string text;       // any bytes
  nlohmann::json id{};    // the JSONL object's "id", or null
  std::string error{};    // why there is no text, or empty
};

// The texts encoded together.
struct TextWindow {
  std::vector<InputText> texts{};
  std::uint64_t begin = 0, end = 0;  // their bytes in the input
};

struct TextInputFlags {
  std::filesystem::path input;
  bool jsonl = false, stream = false;
  std::string field = "text";

  // Adds --input, described so, --jsonl and --field. Returns --input.
  CLI::Option* add_to(CLI::App& command, const std::string& description);
  // The file's path or "standard input", for messages.
  std::string name() const;
  // The size of the input in bytes; 0 if unknown.
  std::uint64_t size() const;
  // Calls visit with the texts in order. A window has as many as make good batches and fit in memory; with
  // `stream`, it has the whole lines that have arrived.
  void for_each_window(const std::function<void(const TextWindow&)>& visit) const;
};

}  // namespace warpwright::cli
