// Finds where a resumed run continues: its newest intact checkpoint, and whether anything is left to do.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "train/checkpoint.hpp"
#include "train/options.hpp"

namespace warpwright {

using Notice = std::function<void(const std::string&)>;

struct SavedRun {
  std::filesystem::path checkpoint;
  TrainerState state;
  std::set<std::int64_t> damaged;  // steps of newer checkpoints that could not be used
};

// The newest checkpoint whose trainer.json can be read; its other files are ignored. For the run's options.
// Nothing for a run without checkpoints; throws Error if none of them is intact, a later version wrote
// one, or the system cannot read one.
std::optional<SavedRun> newest_readable(const std::filesystem::path& run);
// The newest checkpoint whose files all match their checksums; newer ones that do not are told to `notice`.
// Every rank makes this call. Throws Error as newest_readable() does, and if the ranks see different
// checkpoints.
std::optional<SavedRun> newest_whole(const std::filesystem::path& run, const Notice& notice,
                                     const Comm& comm);

// True if the state is the one after the last of `steps`, and RUN/model was written from it.
bool is_finished(const std::filesystem::path& run, const TrainerState& state, std::int64_t steps);

// Removes what killed processes left unfinished in a run's folder.
void clear_leftovers(const std::filesystem::path& run);

// What a run with these options records of its data and tokenizer before its first step. Throws Error if the
// data are not what data.json lists; if the options allow it, tells `notice` instead.
ModelOrigin origin_of(const TrainOptions& options, const Notice& notice);

// Compares the data and tokenizer of a checkpoint with the present ones. Throws Error for a difference,
// saying what changed; if the options allow it, tells `notice` instead.
void compare_origins(const ModelOrigin& saved, const ModelOrigin& present, const TrainOptions& options,
                     const Notice& notice);

}  // namespace warpwright
