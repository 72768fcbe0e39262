// Checkpoints: RUN/checkpoints/step_00001000/, a model folder plus the optimizer's state and trainer.json.
//
// Each rank writes its part (state_part.hpp) into a folder with another name. When all parts are there, rank
// 0 adds the other files, syncs the folder and renames it, so a checkpoint is complete or absent.
// trainer.json holds the checksums of the other files, so that a damaged file is an error and never a silent
// restart. Any number of ranks can read the parts of any other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "infer/origin.hpp"
#include "model/decoder_files.hpp"
#include "runtime/file.hpp"
#include "train/step.hpp"

namespace warpwright {

// The state of a run, without its tensors.
struct TrainerState {
  std::int64_t step = 0;        // steps done
  int ranks = 1;                // that have written the checkpoint; each has a part of it
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

// The checksums of files, by their names.
using Checksums = std::map<std::string, std::string>;

// Throws if a checkpoint of a step after `done` up to `last` could not be put in place, because something
// else has its name: a file, or a folder with entries that are not a checkpoint's.
void require_replaceable_checkpoints(const std::filesystem::path& run, std::int64_t done, std::int64_t last);

// A checkpoint that rank 0 makes. Nothing of it is left unless it is completed.
class NewCheckpoint {
 public:
  NewCheckpoint(const std::filesystem::path& run, std::int64_t step);

  const std::filesystem::path& folder() const { return folder_.folder(); }  // for the parts of all ranks
  const std::filesystem::path& target() const { return target_; }
  // parts: the files that the ranks have written.
  void complete(const TrainerState& state, const Decoder& decoder, const BoundaryTokens& boundary,
                const TokenizerFiles& tokenizer, const Checksums& parts);

 private:
  std::filesystem::path target_;
  AtomicFolder folder_;
};

// Writes the files of a rank's part into the folder of a new checkpoint, with the tensors as the stream
// leaves them.
Checksums write_part(const std::filesystem::path& folder, const StatePart& part, int rank, int ranks,
                     const Decoder& decoder, const Stream& stream);

// A checkpoint of a later version, which is intact but cannot be read.
class NewerCheckpoint : public Error {
 public:
  using Error::Error;
};

// Reads trainer.json alone. Throws NewerCheckpoint, SystemError for a file that the system cannot open or
// read, and any other Error for one that is damaged.
TrainerState read_trainer_state(const std::filesystem::path& checkpoint);
// The same after comparing every file with its checksum; an Error names what is missing or damaged. Each rank
// compares a share of the files, and all get the same Error.
TrainerState verified_trainer_state(const std::filesystem::path& checkpoint,
                                    const Comm& comm = single_rank());
// Fills parameters, masters and moments of a verified checkpoint; shapes and dtypes are checked.
void load_checkpoint(const std::filesystem::path& checkpoint, const TrainingStep& step, const Stream& stream);

// Deletes all but the newest `keep` (0: all stay) and those whose step is a multiple of keep_every. Steps in
// `damaged` neither count nor are deleted. Returns a line for each folder that could not be deleted.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& run, std::int64_t keep,
                                           std::int64_t keep_every, const std::set<std::int64_t>& damaged);

}  // namespace warpwright
