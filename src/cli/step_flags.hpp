// The flags of a training step, the same in train, tune and bench step.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "train/step.hpp"

namespace warpwright::cli {

struct StepFlags {
  std::string dtype = "fp32", recompute = "none", optimizer = "adamw";
  bool memory_efficient_norm = false;

  // --dtype, --batch, --seq, --recompute, --logits-mib, --memory-efficient-norm and --optimizer. With
  // step.T = 0, --seq has default_sequence() for its default.
  void add_to(CLI::App& command, StepOptions& step);
  // Puts the model and what the flags name into the options.
  void finish(StepOptions& step, std::shared_ptr<const Decoder> model) const;
};

// Throws UsageError for a step that train refuses.
void require_trainable(const StepOptions& step, std::int64_t steps);

}  // namespace warpwright::cli
