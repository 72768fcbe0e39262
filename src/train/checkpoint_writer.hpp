// Writes checkpoints over all ranks while training goes on.
//
// A checkpoint begins with a copy of each rank's part, in memory of the host. A thread of each rank writes
// its part. When all are written, a thread of rank 0 completes the checkpoint and deletes old ones. Without
// memory for the copies, or with Mode::wait, training waits instead.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/checkpoint.hpp"
#include "train/options.hpp"

namespace warpwright {

class CheckpointWriter {
 public:
  // They are called on rank 0, by the thread that calls this object.
  struct Reports {
    std::function<void(const std::filesystem::path& checkpoint)> complete;
    std::function<void(const std::string& line)> notice;
  };

  // damaged: steps of checkpoints that neither count nor are deleted. ranks_here: those that share the memory
  // of this host.
  CheckpointWriter(const TrainOptions& options, const BoundaryTokens& boundary,
                   const TokenizerFiles& tokenizer, std::set<std::int64_t> damaged, const Comm& comm,
                   std::size_t ranks_here, Reports reports);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // A single rank completes its checkpoint. Over several ranks, one that is not complete is lost.
  ~CheckpointWriter() = default;

  // Every rank makes the following calls at the same point between its steps. They throw what ended a writer.
  enum class Mode : std::uint8_t { background, wait };
  // Begins a checkpoint, after the one before is complete. wait: it is complete when the call returns.
  void write(const TrainerState& state, const TrainingStep& step, const Context& context, Mode mode);
  // Reports a checkpoint that has become complete.
  void poll();
  // True if this rank has written its part. When all have, each must call complete().
  bool has_written() const;
  void complete();
  // Returns when no checkpoint is being written.
  void finish();

 private:
  bool leads() const { return comm_.rank() == 0; }
  // True if every rank has memory for a copy of its part.
  bool can_copy(const StatePart& part, Device device);
  // On rank 0. Returns warnings.
  std::vector<std::string> finish_and_prune(const Checksums& parts);
  void report(const std::vector<std::string>& warnings);

  const TrainOptions& options_;
  const BoundaryTokens boundary_;
  const TokenizerFiles& tokenizer_;
  std::set<std::int64_t> damaged_;
  const Comm& comm_;
  const std::size_t ranks_here_;
  const Reports reports_;
  std::optional<bool> copies_;  // nothing: not known yet
  std::optional<Snapshot> snapshot_;
  TrainerState state_;
  std::optional<NewCheckpoint> checkpoint_;  // of rank 0
  // The threads' work. They end before the members above do.
  std::future<Checksums> part_;
  std::future<std::vector<std::string>> completion_;  // of rank 0
};

}  // namespace warpwright
