// warpwright train: a training run from the command line.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "cli/command.hpp"
#include "cli/gpu_ranks.hpp"
#include "cli/model_flags.hpp"
#include "cli/on_ranks.hpp"
#include "cli/signals.hpp"
#include "cli/standard_streams.hpp"
#include "cli/train_flags.hpp"
#include "cli/train_memory.hpp"
#include "cli/train_watcher.hpp"
#include "comm/comm.hpp"
#include "comm/nccl.hpp"
#include "core/error.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/file.hpp"
#include "runtime/folder_lock.hpp"
#include "train/trainer.hpp"

namespace warpwright::cli {
namespace {

void check_data(const TrainFlags& flags, int ranks) {
  const std::filesystem::path& data = flags.options.data;
  if (data.empty() && flags.options.resume) {
    FolderLock::require_free(flags.options.out);  // a run may be on its way to its first checkpoint
    throw Error("holds no checkpoint to go on from", flags.options.out.string(),
                fmt::format("check --out{}, or start over: give the run's first command, with --data and "
                            "without --resume",
                            ranks > 1 ? ", where all ranks must see one folder" : ""));
  }
  if (data.empty()) {
    throw UsageError("is missing", "--data", "give a folder that `warpwright data build` made");
  }
  if (!is_folder(data)) {
    throw Error("is not a folder", data.string(),
                "give --data a folder that `warpwright data build` made; if it has moved, its new place");
  }
}

// ranks: the memory of each.
void print_start(const Trainer& trainer, const Context& context, const std::vector<RankMemory>& ranks,
                 bool in_detail) {
  const TrainOptions& o = trainer.options();
  const Decoder& m = *o.step.model;
  fmt::print("model: {}, vocabulary {}, context {}: {} parameters\n", m.describe(), m.vocab(), m.context(),
             human_count(m.parameter_count()));
  fmt::print("step: {} × {} × {} = {} in {}{} on {}, {}\n", counted(o.step.slices, "slice"),
             counted(o.step.B, "sequence"), counted(o.step.T, "token"),
             counted(o.step.slices * o.step.B * o.step.T, "token"), name_of(o.step.dtype),
             o.step.master_weights ? "" : " without master weights", context.device().name,
             counted(context.threads(), "thread"));
  const auto count = static_cast<std::int64_t>(ranks.size());
  if (count > 1) {
    fmt::print("ranks: {}, with {} each, --reduce {} and --shard {}{}\n", count,
               counted(o.step.slices / count, "slice"), name_of(o.step.reduce), name_of(o.step.sharding),
               o.planner_shards ? ", as the planner chooses" : "");
  }
  fmt::print("memory plan{}:\n{}", count > 1 ? " of rank 0" : "", trainer.plan().summary());
  if (const std::size_t others = ranks.front().total() - trainer.plan().total_bytes(); others > 0) {
    fmt::print("  and for {} {}\n", ranks.front().nccl > 0 ? "NCCL and samples" : "samples",
               human_bytes(static_cast<double>(others)));
  }
  fmt::print("  and, while a checkpoint is written, {} of the host's memory\n",
             human_bytes(static_cast<double>(trainer.checkpoint_bytes())));
  if (count > 1 && in_detail) fmt::print("memory of each rank:\n{}", memory_table(ranks));
  if (const auto step = trainer.resumed_step()) fmt::print("resumed after step {}\n", *step);
  require_whole_output();
}

// Without the option a step is one slice, so that its results do not depend on the number of ranks.
void require_total_batch(const TrainFlags& flags, const StepOptions& step, int ranks) {
  if (ranks == 1 || flags.total_batch > 0) return;
  throw UsageError(
      fmt::format("is not given, and a step is then one slice of batch × seq, which {} ranks cannot share",
                  ranks),
      "--total-batch",
      fmt::format("give ranks × batch × seq = {}, as `warpwright plan` assumes, or a multiple",
                  ranks * step.B * step.T));
}

// The checkpoint that --resume continues. Its options become the flags.
std::optional<SavedRun> resumed_run(TrainFlags& flags, CLI::App& command) {
  if (!flags.options.resume) return std::nullopt;
  auto saved = newest_readable(flags.options.out);
  if (saved) flags.restore(command, *saved);
  return saved;
}

void report_end(const Trainer& trainer, bool finished, std::int64_t skipped) {
  const TrainOptions& options = trainer.options();
  const std::string run = options.out.string();
  if (skipped > 0) fmt::print("{} updates were skipped\n", skipped);
  if (finished) {
    fmt::print("finished: model in {}\n", (options.out / "model").string());
    return;
  }
  if (!trainer.has_begun()) {
    require_whole_output();
    fmt::print("stopped before the first step: nothing is written; start again with the same command\n");
    return require_whole_output();
  }
  if (std::ferror(stdout) != 0) {
    throw Error("cannot be written", "standard output",
                "a checkpoint is written: check the free space or the program that reads it, and go on with "
                "--resume");
  }
  fmt::print("stopped: a checkpoint and model are in {}; `warpwright train --resume --out {}` goes on\n", run,
             run);
  require_whole_output();
}

// The table that the flags ask for, or that the resumed run has used so far.
std::shared_ptr<const TunedTable> tuned_table(const TrainFlags& flags) {
  const auto notice = notify_of("train");
  const Device device = flags.device.place();
  if (flags.saved_table.empty() || flags.tuned.are_given()) return flags.tuned.load(device, notice);
  const std::filesystem::path path = flags.options.out / kTunedFile;
  auto table = usable_table(path, device, notice);
  if (!table || table->checksum() == flags.saved_table) return table;
  notice(fmt::format("{} is not the table that the run has used so far: it is not used", path.string()));
  return nullptr;
}

// Rank 0 alone prints. While a process without other ranks loads, a signal ends it at once.
TrainObserver observer_of(TrainWatcher& watcher, const Comm& comm) {
  TrainObserver observer = comm.rank() == 0 ? watcher.observer() : TrainObserver();
  if (comm.size() == 1) observer.started = stop_on_signals;
  return observer;
}

// Options on the command line must be those of the finished run.
void require_run(const SavedRun& saved, const TrainOptions& options, bool names_data) {
  compare_options(saved.state.options, identity_of(options), saved.checkpoint, {});
  if (!names_data || !saved.state.origin) return;
  require_shards(options.data);
  compare_origins(*saved.state.origin, origin_of(options, {}), options, {});
}

// True if the run has done all its steps before. Its data may be gone unless the command line names them.
bool is_done(const TrainFlags& flags, const TrainOptions& options, const std::optional<SavedRun>& saved,
             bool names_data, const Comm& comm) {
  const bool done = saved && is_finished(options.out, saved->state, options.schedule.steps);
  if (const auto all = gathered(comm, {done ? 1.0 : 0.0}); std::ranges::count(all, all[0]) < comm.size()) {
    throw Error("is finished for some ranks and not for others", options.out.string(),
                "give all ranks the same folders and options");
  }
  if (!done || names_data) check_data(flags, comm.size());
  if (!done) return false;
  require_run(*saved, options, names_data);
  if (comm.rank() != 0) return true;
  clear_leftovers(options.out);
  fmt::print("finished already after step {}: model in {}; to train longer, give a larger --steps\n",
             saved->state.step, (options.out / "model").string());
  return true;
}

// Returns false if a signal, or standard output that failed, stopped the run. `texts` carries texts between
// the ranks.
bool train(TrainFlags& flags, const std::optional<SavedRun>& saved, bool names_data, const Comm& texts) {
  const bool leads = texts.rank() == 0;
  if (texts.size() > 1) stop_on_signals();  // a rank that ended by itself would look like a lost one
  const TrainOptions options = flags.finished_options();
  require_total_batch(flags, options.step, texts.size());
  if (is_done(flags, options, saved, names_data, texts)) return true;
  require_shards(options.data);
  ContextOptions context_options = flags.device.context_options(flags.step.dtype);
  context_options.tuned = tuned_table(flags);
  context_options.verbose &= leads;
  Context context(std::move(context_options), flags.device.place());
  const Device device = context.device().device;
  const bool on_gpus = texts.size() > 1 && device.kind == DeviceKind::cuda;
  const std::unique_ptr<const Comm> gpus = on_gpus ? connect_gpus(texts, device) : nullptr;
  const Comm& comm = gpus ? *gpus : texts;
  constexpr double kPeakSeconds = 0.05;
  double peak = 0;  // of all ranks
  for (const double of_rank :
       gathered(comm, {measure_peak_flops(context.device(), kPeakSeconds).of(options.step.dtype)})) {
    peak += of_rank;
  }
  TrainWatcher watcher(peak, options);
  Trainer trainer(context, options, observer_of(watcher, comm), comm);
  const std::vector<RankMemory> memory = memory_of_ranks(comm, trainer.memory());
  if (leads) {
    print_start(trainer, context, memory, flags.show_plan);
    if (flags.show_plan) fmt::print("{}", trainer.plan().details());
  }
  check_memory(context, trainer, memory, comm);
  std::signal(SIGPIPE, SIG_IGN);
  bool finished = false;
  // Here, so that an error does not wait for exchanges that GPUs have begun.
  ending_ranks(comm, [&] { finished = trainer.run(stop_request.made); });
  // A signal to one rank stops all, and all end with its code.
  stop_request.signal =
      static_cast<int>(std::ranges::max(gathered(comm, {static_cast<double>(stop_request.signal.load())})));
  if (leads) report_end(trainer, finished, watcher.skipped());
  return finished;
}

void run(TrainFlags& flags, CLI::App& command) {
  bool finished = true;
  std::optional<SavedRun> saved;
  const auto prepare = [&](const Launch& launch) {
    saved = resumed_run(flags, command);
    if (!saved) check_data(flags, launch.ranks);
    choose_device(flags.ranks, flags.device, command, launch, Exchanged::tensors);
  };
  const bool names_data = command.count("--data") > 0;
  run_on_ranks(flags.ranks, prepare,
               [&](const Comm& texts) { finished = train(flags, saved, names_data, texts); });
  if (finished) return;
  if (stop_request.signal == 0) throw RanksFailed{EXIT_FAILURE};  // rank 0 has said why it asked for the end
  throw StoppedBySignal{stop_request.signal};
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train",
                                         "Train a decoder on token shards. Ctrl-C, SIGTERM and SIGHUP stop "
                                         "it with a checkpoint; a second Ctrl-C ends it at once");
  auto flags = std::make_shared<TrainFlags>();
  flags->add_to(*command);
  command->callback([flags, command] { run(*flags, *command); });
}

}  // namespace warpwright::cli
