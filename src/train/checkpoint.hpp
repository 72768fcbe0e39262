// Checkpoints: RUN/checkpoints/step_00001000/, a model folder plus optimizer.safetensors and trainer.json.
//
// A checkpoint is written under another name, synced and renamed, so it is complete or absent. trainer.json
// holds the checksums of the other files, so that a damaged file is an error and never a silent restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "infer/origin.hpp"
#include "train/step.hpp"

namespace warpwright {

// The state of a run, without its tensors.
struct TrainerState {
  std::int64_t step = 0;        // steps done
  nlohmann::json options;       // identity_of (train/options.hpp)
  nlohmann::json settings;      // settings_of; empty in checkpoints of version 2 and older
  std::uint64_t plan_hash = 0;  // of the kernels in use
  std::vector<double> loss_window, norm_window;
  std::optional<ModelOrigin> origin;  // the data and the tokenizer; nothing in version 2 and older
  // The last step's loss, norm, … if the run was stopped before its validation or sample was done: resuming
  // does these first.
  nlohmann::json unreported;
};

struct Checkpoint {
  std::int64_t step = 0;
  std::filesystem::path folder;
};

// The checkpoints of a run in order of their steps. Other names are ignored. A run without the folder has
// none; a folder that cannot be listed is an Error.
std::vector<Checkpoint> list_checkpoints(const std::filesystem::path& run);

// Saves the tensors as the stream leaves them. On rank 0; the other ranks call
// step.give_parameters() and step.gather_optimizer().
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const TrainerState& state,
                                      const Decoder& decoder, std::int64_t eos_token,
                                      const std::filesystem::path& tokenizer, const TrainingStep& step);

// Reads trainer.json alone.
TrainerState read_trainer_state(const std::filesystem::path& checkpoint);
// The same after comparing every file with its checksum; an Error names what is missing or damaged.
TrainerState verified_trainer_state(const std::filesystem::path& checkpoint);
// Fills parameters, masters and moments of a verified checkpoint; shapes and dtypes are checked.
void load_checkpoint(const std::filesystem::path& checkpoint, const TrainingStep& step, const Stream& stream);

// Deletes all but the newest `keep` (0: all stay) and those whose step is a multiple of keep_every. Steps in
// `damaged` neither count nor are deleted. Returns a line for each folder that could not be deleted.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& run, std::int64_t keep,
                                           std::int64_t keep_every, const std::set<std::int64_t>& damaged);

}  // namespace warpwright
