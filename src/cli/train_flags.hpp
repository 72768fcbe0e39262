// The flags of `warpwright train`: their definitions, the options that they make, and how a checkpoint
// restores them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/command.hpp"
#include "cli/free_sizes.hpp"
#include "cli/named.hpp"
#include "cli/on_ranks.hpp"
#include "cli/step_flags.hpp"
#include "cli/tuned_flags.hpp"
#include "train/trainer.hpp"

namespace warpwright::cli {

// Texts for --help.
struct SizeDefaults {
  std::string vocab, total_batch;
};

// --master-weights: true if there are any.
inline constexpr Word<bool> kMasterWeights[] = {{"fp32", true}, {"none", false}};

struct TrainFlags {
  std::string model;
  FreeSizes free;
  std::shared_ptr<const Decoder> resumed;  // the model of this checkpoint
  std::filesystem::path checkpoint;
  std::int64_t total_batch = 0;
  StepFlags step;
  std::string shard = "auto", reduce = "tree", master_weights = "fp32", schedule = "cosine",
              on_non_finite = "stop";
  bool show_plan = false;
  TrainOptions options;
  DeviceFlags device;
  OnRanksFlags ranks;
  TunedFlags tuned;
  std::string saved_table;  // the checksum of the tuned table that the resumed run has used, or ""

  void add_to(CLI::App& command);
  // Only the flags of the model, the slices and what ranks divide.
  void add_sizes_to(CLI::App& command, const SizeDefaults& defaults);
  // Takes the flags from the checkpoint, except those that the command line gives.
  void restore(CLI::App& command, const SavedRun& saved);
  // Throws UsageError or Error if flags do not fit together.
  TrainOptions finished_options();
};

// Throws Error if the folder holds no token shards, and says how to build them.
void require_shards(const std::filesystem::path& data);

}  // namespace warpwright::cli
