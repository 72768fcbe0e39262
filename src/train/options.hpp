// The options of a training run, and how a checkpoint keeps them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "train/learning_rate.hpp"
#include "train/step.hpp"

namespace warpwright {

// The tuned table that a run uses, in its folder.
inline constexpr const char* kTunedFile = "tuned.json";

enum class OnNonFinite : std::uint8_t { stop, skip };
inline constexpr OnNonFinite kOnNonFinite[] = {OnNonFinite::stop, OnNonFinite::skip};
std::string_view name_of(OnNonFinite what);

struct TrainOptions {
  StepOptions step;
  LearningRateSchedule schedule;
  std::filesystem::path data;           // shards of split "train" and, for validation, "val"
  std::filesystem::path out;            // RUN
  std::filesystem::path initial_model;  // a folder to start from; empty: random weights
  std::uint64_t seed = 1337;
  std::int64_t val_every = 0, val_batches = 0;  // steps; batches of B·T (0: the whole split)
  std::int64_t sample_every = 0, sample_tokens = 64;
  double checkpoint_minutes = 10;     // between checkpoints; 0: none by time
  std::int64_t checkpoint_every = 0;  // steps; 0: none by steps
  std::int64_t keep = 2;              // newest checkpoints to keep; 0: all
  std::int64_t keep_every = 0;        // keep also those whose step is a multiple of this
  bool planner_shards = false;        // the planner chooses step.sharding by the memory that there is
  bool resume = false;
  bool overfit = false;  // every step on the first step's samples
  OnNonFinite on_non_finite = OnNonFinite::stop;
  double skip_loss_z = 0, skip_norm_z = 0;  // z-scores above which an update is skipped; 0: never
  // Continue although the data, or its tokenizer, differs from that of the run or of the initial model.
  bool allow_data_change = false, allow_tokenizer_change = false;

  void validate() const;  // throws UsageError
};

// Throws UsageError unless the number of ranks divides the slices.
void require_equal_shares(const StepOptions& step, int ranks);

// The options that decide what a step computes, under the names that trainer.json and messages use.
nlohmann::json identity_of(const TrainOptions& options);
// The other options that a resumed run takes over, with the device and threads given to the context.
nlohmann::json settings_of(const TrainOptions& options, const Context& context);

// Tells `notice` of each option whose value differs from the checkpoint's. Throws Error for one that would
// make it a different run: model, dtype, master weights, optimizer, T, total batch, reduce, seed, overfit.
void compare_options(const nlohmann::json& saved, const nlohmann::json& present,
                     const std::filesystem::path& checkpoint,
                     const std::function<void(const std::string&)>& notice);

}  // namespace warpwright
