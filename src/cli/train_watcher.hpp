// Prints the progress of `warpwright train`: a line that overwrites itself on a terminal, plain lines in
// logs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "text/tokenizer.hpp"
#include "train/trainer.hpp"

namespace warpwright::cli {

class TrainWatcher {
 public:
  TrainWatcher(double peak_flops, const TrainOptions& options);

  // The observer refers to this object.
  TrainObserver observer();
  std::int64_t skipped() const { return skipped_; }  // updates

 private:
  void step(const StepReport& r);
  // If nobody reads standard output any more, asks the run to stop.
  void print(const std::string& text);
  std::string decode(const std::vector<std::int32_t>& tokens) const;

  double peak_flops_;
  std::int64_t every_;  // steps between lines if there is no terminal
  std::int64_t skipped_ = 0;
  std::optional<text::Tokenizer> tokenizer_;
  ProgressLine line_;
};

}  // namespace warpwright::cli
