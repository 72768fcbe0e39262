// What `embed` and `rank` share: the flags of an encoder, and texts read from lines or JSONL.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "infer/encode.hpp"

namespace warpwright::cli {

struct EncoderFlags {
  std::filesystem::path model;
  std::string weights_cache = "auto";
  std::string dtype = "fp32", over_limit = "truncate";
  std::int64_t max_length = 0, batch_tokens = 16384;
  bool batch_invariant = false, special_as_text = false;
  DeviceFlags device;

  void add_to(CLI::App& command);
  // UsageError for a name that is none.
  EncoderOptions options() const;
};

// A line of the input.
struct InputText {
  std::int64_t line = 0;  // from 1
  std::string text;       // of any bytes
  nlohmann::json id;      // of a JSONL object that has one, else null
  std::string error;      // why there is no text; empty: there is
};

struct TextInputFlags {
  std::filesystem::path input;
  bool jsonl = false;
  std::string field = "text";

  void add_to(CLI::App& command);
  // Calls visit with the texts in order, as many at a time as make good batches and fit in memory.
  void for_each_window(const std::function<void(const std::vector<InputText>&)>& visit) const;
};

// Where a reader of the output learns of texts without a result.
enum class ErrorsAre { in_the_output, in_rows_of_zeros };

// Counts texts and what was wrong with some, shows progress and writes the closing line (all to stderr).
class EncoderProgress {
 public:
  explicit EncoderProgress(ErrorsAre errors) : errors_are_(errors) {}

  // `texts` and `tokens` are those done so far.
  void show(std::int64_t texts, std::int64_t tokens);
  // Of a text. Printed are all that the output does not name, else the first few.
  void report(std::int64_t line, const std::string& error);
  // The closing line; throws Error where there were errors.
  void finish(std::int64_t texts, std::int64_t tokens, std::int64_t wasted_tokens);

 private:
  double seconds() const;

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ProgressLine line_;
  ErrorsAre errors_are_;
  std::int64_t errors_ = 0;
};

}  // namespace warpwright::cli
