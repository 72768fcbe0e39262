// The training run: data, schedule, validation, samples, checkpoints, metrics, and what happens when things
// go wrong.
//
// Everything a step computes is a pure function of the initial weights, the data, the seed, the options and
// the step, so that a run that was interrupted continues bit for bit from its last checkpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "data/loader.hpp"
#include "infer/generate.hpp"
#include "runtime/file.hpp"
#include "train/outlier.hpp"
#include "train/schedule.hpp"
#include "train/step.hpp"

namespace warpwright {

enum class OnNonFinite : std::uint8_t { stop, skip };

struct TrainOptions {
  StepOptions step;
  Schedule schedule;
  std::filesystem::path data;           // shards of split "train" and, for validation, "val"
  std::filesystem::path out;            // RUN
  std::filesystem::path initial_model;  // a folder to start from; empty: random weights
  std::uint64_t seed = 1337;
  std::int64_t val_every = 0, val_batches = 0;  // steps; micro-batches of B·T (0: the whole split)
  std::int64_t sample_every = 0, sample_tokens = 64;
  std::int64_t checkpoint_every = 0;  // steps; 0: none on the way
  std::int64_t keep = 2;              // newest checkpoints to keep; 0: all
  std::int64_t keep_every = 0;        // and those whose step is a multiple of this
  bool resume = false;
  bool overfit = false;  // every step on the first step's samples
  OnNonFinite on_non_finite = OnNonFinite::stop;
  double skip_loss_z = 0, skip_norm_z = 0;  // z-scores above which an update is skipped; 0: never

  void validate() const;  // throws UsageError
};

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

// What a run tells whoever watches it. Every function may be empty.
struct TrainObserver {
  std::function<void(const StepReport&)> step;
  std::function<void(std::int64_t step, double loss)> validation;
  std::function<void(std::int64_t step, const std::vector<std::int32_t>& tokens)> sample;
  std::function<void(const std::filesystem::path&)> checkpoint;
  std::function<void(const std::string&)> notice;
};

class Trainer {
 public:
  // Opens the data, plans the memory and (with resume) finds the checkpoint. Takes no memory for tensors yet.
  Trainer(Context& context, TrainOptions options, TrainObserver observer);
  ~Trainer();

  const MemoryPlan& plan() const { return step_.plan(); }
  const TrainOptions& options() const { return options_; }
  // Bytes taken by run() in all: the plan's and the sample generator's.
  std::size_t planned_bytes() const;
  std::optional<std::int64_t> resumed_step() const;

  // Trains to the last step, or until `stop` becomes true: then a checkpoint is written first and false
  // returned. Writes RUN/model at the end.
  bool run(const std::atomic<bool>& stop);

 private:
  struct StepResult {
    double loss, norm;
    std::string skipped;
  };

  void open_validation();
  void start();
  // The next step's result. On a GPU the one after it has been launched meanwhile (unless stopping), so that
  // the device does not wait for the host.
  StepResult run_step(bool stopping);
  void launch_step();
  StepResult finish_step();
  // Whether the host looks at loss and norm before each update.
  bool updates_need_the_host() const;
  bool is_due(std::int64_t every, std::int64_t step) const;
  bool pauses_after(std::int64_t step) const;
  void load_micro_batch(std::int64_t step, std::int64_t micro);
  std::string reason_to_skip(double loss, double norm);
  [[noreturn]] void throw_non_finite(double loss, double norm);
  double validate_loss();
  void draw_sample();
  void after_step(const StepReport& report);
  void write_checkpoint();
  void write_metrics(const StepReport& report, std::optional<double> val_loss);
  void open_metrics();

  Context& context_;
  TrainOptions options_;
  TrainObserver observer_;
  FolderLock lock_;
  TokenStream train_stream_;
  std::optional<TokenStream> val_stream_;
  TrainingLoader loader_;
  TrainingStep step_;
  MemoryPlan sampling_;  // what generator_ will take
  std::unique_ptr<Generator> generator_;
  OutlierDetector loss_outliers_, norm_outliers_;
  std::optional<std::filesystem::path> resume_from_;
  std::int64_t step_index_ = 0;  // steps done
  std::int64_t launched_ = 0;    // steps given to the device
  std::unique_ptr<OutputFile> metrics_;
};

}  // namespace warpwright
