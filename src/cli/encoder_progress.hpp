// Shared by `embed` and `rank`: progress reports, the list of failed texts, and the summary.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/command.hpp"
#include "cli/text_input.hpp"
#include "infer/encode.hpp"

namespace warpwright::cli {

// The output marks a text that failed with its error, or only by a row of zeros.
enum class ErrorsAre { in_the_output, in_rows_of_zeros };

// Everything but finish() writes to standard error.
class EncoderProgress {
 public:
  // `leads` is false in a rank that reports nothing.
  EncoderProgress(ErrorsAre errors, const TextInputFlags& input, bool leads);

  // Shows that the encoding of this window begins, how much of it is done, and its end.
  void begin(const TextWindow& window);
  void show(const EncodeProgress& progress);
  void end(const TextWindow& window);
  // Reports a text that failed: each one if the output does not name them, else the first few.
  void report(std::int64_t line, const std::string& error);
  // Prints the summary, as text or JSON, on standard error or standard output. Throws Error if a text failed.
  void finish(std::int64_t wasted_tokens, bool json, bool on_standard_output);

 private:
  double seconds() const;
  std::int64_t tokens_per_second() const;
  std::string summary(std::int64_t wasted_tokens, bool json) const;
  void show();

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ProgressLine line_;
  ErrorsAre errors_are_;
  bool leads_;
  std::string input_;                                // its name
  std::uint64_t input_bytes_, begin_ = 0, end_ = 0;  // of the present window
  double share_ = 0;                                 // of the present window
  std::int64_t texts_ = 0, tokens_ = 0, errors_ = 0;
};

}  // namespace warpwright::cli
