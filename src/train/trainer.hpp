// The training run: data, schedule, validation, samples, checkpoints, metrics, and what happens when things
// go wrong.
//
// Everything a step computes is a pure function of the initial weights, the data, the seed, the options and
// the step, so that a run that was interrupted continues bit for bit from its last checkpoint. A step that is
// interrupted between its slices leaves no trace: it has changed no weight.
//
// Several ranks train together, each with its share of every step's slices and of the validation's batches.
// All of them read the data and the checkpoint that a run resumes, and write their parts of checkpoints; rank
// 0 writes everything else. They decide together, and between steps, when to stop and when to write.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "comm/comm.hpp"
#include "data/loader.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/origin.hpp"
#include "runtime/file.hpp"
#include "train/checkpoint_writer.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"
#include "train/outlier.hpp"
#include "train/rank_memory.hpp"
#include "train/resume.hpp"
#include "train/stragglers.hpp"

namespace warpwright {

struct StepReport {
  std::int64_t step = 0, steps = 0;  // step counts from 1
  double loss = 0;                   // mean over the step's tokens, in nats
  double gradient_norm = 0;          // before clipping
  double learning_rate = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;
  double seconds_left = 0;
  std::string skipped;  // why the update was left out, or ""
};

// Callbacks that report a run's progress. Any of them may be empty.
struct TrainObserver {
  std::function<void(const StepReport&)> step;
  std::function<void(std::int64_t step, double loss)> validation;
  std::function<void(std::int64_t step, const std::vector<std::int32_t>& tokens)> sample;
  std::function<void(const std::filesystem::path&)> checkpoint;
  std::function<void(const std::string&)> notice;
  std::function<void()> started;  // everything is loaded, the first step begins
};

class Trainer {
 public:
  // Opens the data and compares it with what the run or the initial model knows, plans the memory and (with
  // resume) finds the newest whole checkpoint. Takes no memory for tensors yet.
  // Ranks that differ in what decides the results are an Error.
  Trainer(Context& context, TrainOptions options, TrainObserver observer, const Comm& comm = single_rank());
  ~Trainer();

  const MemoryPlan& plan() const { return step_.plan(); }
  const TrainOptions& options() const { return options_; }
  // The memory that run() takes in all: the plan's and the sample generator's.
  RankMemory memory() const;
  // Bytes of this rank's part of a checkpoint, of which the host keeps a copy if it has the memory.
  std::size_t checkpoint_bytes() const { return step_.state_part_bytes(); }
  std::optional<std::int64_t> resumed_step() const;

  // Trains to the last step, or until `stop` becomes true, and then returns false. On a CPU a stop takes
  // effect after the current operation, on a GPU after the current slice, also in validation and
  // samples; over several ranks it takes effect after the step. It then writes a checkpoint and RUN/model at
  // the end. A run that is already finished changes nothing. A stop before everything is loaded, and an error
  // before the first step is done, leave the run's folder as it was.
  bool run(const std::atomic<bool>& stop);
  bool has_begun() const { return has_begun_; }

 private:
  struct StepResult {
    double loss, norm;
    std::string skipped;
    double seconds;  // on the device
  };
  // The next thing to do, which depends on signals and the clock.
  enum class Next : std::uint8_t { go_on, checkpoint, stop };

  void restore(const SavedRun& saved);
  void compare_ranks() const;
  bool leads() const { return comm_.rank() == 0; }
  std::int64_t slices_of_rank() const { return options_.step.slices / comm_.size(); }
  void load();
  // False if a stop comes before everything is loaded.
  bool start();
  bool asked_to_stop() const;  // this rank or another
  Next decide();
  // Rank 0 looks for one that keeps the others waiting.
  void compare_work(const std::vector<double>& worked);
  // The next step's result; nothing if a stop abandoned it. On a GPU the step after it has been launched
  // meanwhile (unless draining), so that the device does not wait for the host.
  std::optional<StepResult> run_step(bool draining);
  void launch_step();
  StepResult finish_step();
  StepReport read_report(const nlohmann::json& json) const;  // of a checkpoint
  StepReport report_of(StepResult result, double seconds, double seconds_left) const;
  // Runs work that changes no weight. False if a stop abandoned it.
  bool unless_stopped(const std::function<void()>& work);
  void leave_if_stopped() const;
  // True if the host looks at loss and norm before each update.
  bool updates_need_the_host() const;
  bool is_due(std::int64_t every, std::int64_t step) const;
  bool pauses_after(std::int64_t step) const;
  void load_slice(std::int64_t step, std::int64_t slice);
  std::string reason_to_skip(double loss, double norm);
  [[noreturn]] void throw_non_finite(double loss, double norm);
  double validate_loss();
  void draw_sample();
  // Validation, metrics and sample of the step. After a stop they start from the beginning.
  void after_step(StepReport report);
  TrainerState state() const;
  // Before the first thing that the run writes into its folder.
  void keep_folder();
  void write_checkpoint(CheckpointWriter::Mode mode);
  void write_model();
  void save_model();
  void write_metrics(const StepReport& report, std::optional<double> val_loss);
  void notify(const std::string& line) const;  // "": nothing

  Context& context_;
  TrainOptions options_;
  TrainObserver observer_;
  const Comm& comm_;
  std::unique_ptr<ProvisionalFolder> folder_;  // rank 0 only; kept once a step or a checkpoint is written
  TokenStream train_stream_;
  std::optional<TokenStream> val_stream_;
  TrainingLoader loader_;
  TrainingStep step_;
  MemoryPlan sampling_;  // what generator_ will take
  std::unique_ptr<DecodingEngine> generator_;
  OutlierDetector loss_outliers_, norm_outliers_;
  std::optional<std::filesystem::path> resume_from_;
  std::set<std::int64_t> damaged_;  // steps of checkpoints that are not whole
  std::optional<CheckpointWriter> checkpoints_;
  std::optional<Stragglers> stragglers_;
  double step_seconds_ = 0, worked_seconds_ = 0;  // of the last step, and without exchanges
  ModelOrigin origin_;
  BoundaryTokens boundary_;
  TokenizerFiles tokenizer_;  // on rank 0
  bool has_begun_ = false, table_is_written_ = false;
  bool finished_ = false;                   // already before this process began
  std::optional<StepReport> unreported_;    // of a step whose validation or sample was abandoned
  std::optional<std::int64_t> saved_step_;  // of the newest checkpoint, complete or being written
  std::chrono::steady_clock::time_point saved_at_;
  const std::atomic<bool>* stop_ = nullptr;
  std::int64_t step_index_ = 0;  // steps done
  std::int64_t launched_ = 0;    // steps given to the device
  std::optional<Metrics> metrics_;
};

}  // namespace warpwright
