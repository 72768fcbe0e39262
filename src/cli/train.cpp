// warpwright train: the training run from the command line, with progress for people and plain lines for
// logs.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/signals.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "data/manifest.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "train/trainer.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};

struct sigaction before[NSIG];  // the handlers of end_cleanly_on_signals()

// The first signal asks the run to write a checkpoint and stop; a second one ends it at once, as it ends
// other commands. A run also stops with a checkpoint when the reader of its output has gone.
extern "C" void request_stop(int signal) {
  stop_signal = signal;
  stop_requested = true;
  ::sigaction(signal, &before[signal], nullptr);
}

void take_signals() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaction(signal, nullptr, &before[signal]);
    if (before[signal].sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

struct Flags {
  std::string model;
  GPT2Config free{.vocab = 0, .context = 0};
  std::int64_t total_batch = 0;
  std::string recompute = "none";
  bool memory_efficient_norm = false;
  std::string dtype = "fp32", master_weights = "fp32", schedule = "cosine", on_non_finite = "stop";
  bool show_plan = false;
  TrainOptions options;
  DeviceFlags device;
};

// The model's sizes from --model NAME or DIR, or from --layers, --heads and --channels.
GPT2Config model_config(Flags& flags, const std::optional<Manifest>& manifest) {
  constexpr std::string_view kNamed = "gpt2:";
  const bool has_free = flags.free.layers || flags.free.heads || flags.free.channels;
  if (flags.model.empty() == !has_free) {
    throw UsageError(has_free ? "is given together with --layers, --heads or --channels" : "is missing",
                     "--model", "give gpt2:NAME or a folder, or --layers, --heads and --channels");
  }
  if (!has_free && flags.model.rfind(kNamed, 0) != 0) {
    flags.options.initial_model = flags.model;
    if (!path_exists(flags.model)) {
      throw UsageError(fmt::format("'{}' is neither gpt2:NAME nor a folder", flags.model), "--model",
                       "use gpt2:124M, gpt2:dN or a model's folder");
    }
    return read_gpt2_config(flags.model);
  }
  GPT2Config config =
      has_free ? flags.free : GPT2Config::named(std::string_view(flags.model).substr(kNamed.size()));
  if (flags.free.context > 0) config.context = flags.free.context;
  if (config.context == 0) config.context = flags.options.step.T ? flags.options.step.T : 1024;
  if (flags.free.vocab > 0) {
    config.vocab = flags.free.vocab;
  } else if (manifest) {
    config.vocab = manifest->vocabulary_size;
  } else if (has_free) {
    throw UsageError("is missing, and the data folder has no data.json to take it from", "--vocab",
                     "give the tokenizer's number of tokens");
  }
  if (has_free) {
    try {
      config.validate("--layers, --heads, --channels, --vocab, --context");
    } catch (const Error& error) {
      throw UsageError(error.problem(), error.where(), error.remedy());
    }
  }
  return config;
}

void check_data(const Flags& flags) {
  const fs::path& data = flags.options.data;
  if (data.empty() && flags.options.resume) {
    throw Error("holds no checkpoint to go on from", flags.options.out.string(),
                "check --out, or start a run with --data");
  }
  if (data.empty()) {
    throw UsageError("is missing", "--data", "give a folder that `warpwright data build` made");
  }
  if (!is_folder(data)) {
    throw Error("is not a folder", data.string(),
                flags.options.resume ? "if the data has moved, give its new place with --data"
                                     : "give one that `warpwright data build` made");
  }
}

// Calls visit(NAME, variable) for every flag but the model's that a checkpoint keeps under NAME.
template <class Visit>
void visit_saved(Flags& f, const Visit& visit) {
  TrainOptions& o = f.options;
  visit("data", o.data);
  visit("batch", o.step.B);
  visit("T", o.step.T);
  visit("total_batch", f.total_batch);
  visit("dtype", f.dtype);
  visit("master_weights", f.master_weights);
  visit("recompute", f.recompute);
  visit("memory_efficient_norm", f.memory_efficient_norm);
  visit("clip", o.step.clip);
  visit("beta1", o.step.beta1);
  visit("beta2", o.step.beta2);
  visit("eps", o.step.eps);
  visit("weight_decay", o.step.weight_decay);
  visit("decay_all", o.step.decay_all);
  visit("schedule", f.schedule);
  visit("lr", o.schedule.peak);
  visit("warmup", o.schedule.warmup);
  visit("steps", o.schedule.steps);
  visit("final_lr_fraction", o.schedule.final_fraction);
  visit("decay_fraction", o.schedule.decay_fraction);
  visit("seed", o.seed);
  visit("overfit", o.overfit);
  visit("val_every", o.val_every);
  visit("val_batches", o.val_batches);
  visit("sample_every", o.sample_every);
  visit("sample_tokens", o.sample_tokens);
  visit("checkpoint_minutes", o.checkpoint_minutes);
  visit("checkpoint_every", o.checkpoint_every);
  visit("keep", o.keep);
  visit("keep_every", o.keep_every);
  visit("on_nonfinite", f.on_non_finite);
  visit("skip_loss_z", o.skip_loss_z);
  visit("skip_norm_z", o.skip_norm_z);
  visit("device", f.device.device);
  visit("threads", f.device.threads);
}

// The flags as the checkpoint has them, and over them those that the command line gives.
void restore_flags(Flags& flags, CLI::App& command, const SavedRun& saved) {
  nlohmann::json json = saved.state.options;
  json.update(saved.state.settings);
  try {
    visit_saved(flags, [&](const char* name, auto& variable) {
      const auto found = json.find(name);
      if (found == json.end()) return;  // an older checkpoint says less
      if constexpr (std::is_same_v<decltype(variable), fs::path&>) {
        variable = found->template get<std::string>();
      } else {
        found->get_to(variable);
      }
    });
    if (json.value("tf32", false)) flags.dtype = "tf32";
    if (command.count("--model") == 0) {
      flags.free = GPT2Config::from_json(json.at("model"), saved.checkpoint.string());
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("has options that cannot be read: {}", reason_of(error)),
                (saved.checkpoint / "trainer.json").string(),
                "resume from another checkpoint: delete this one");
  }
  for (CLI::Option* option : command.get_options()) {
    if (option->count() > 0) option->run_callback();
  }
}

TrainOptions finished_options(Flags& flags) {
  TrainOptions& o = flags.options;
  o.step.model = model_config(flags, read_manifest(o.data));
  o.step.dtype = compute_dtype(flags.dtype);
  o.step.master_weights = flags.master_weights == "fp32";
  o.schedule.kind = schedule_named(flags.schedule);
  o.step.recompute = recompute_named(flags.recompute);
  if (flags.memory_efficient_norm) o.step.norms = NormBackwardFrom::output;
  o.on_non_finite = flags.on_non_finite == "skip" ? OnNonFinite::skip : OnNonFinite::stop;
  if (o.step.T == 0) o.step.T = o.step.model.context;
  if (o.step.B < 1 || o.step.T < 1) {
    throw UsageError(fmt::format("is {}, with --seq {}", o.step.B, o.step.T), "--batch",
                     "give at least 1 for each");
  }
  std::int64_t micro = 0;
  if (__builtin_mul_overflow(o.step.B, o.step.T, &micro)) {
    throw UsageError(fmt::format("{} sequences of {} tokens are too many", o.step.B, o.step.T), "--batch",
                     "lower it or --seq");
  }
  if (flags.total_batch % micro != 0) {
    throw UsageError(
        fmt::format("{} is not a multiple of batch × seq = {} × {}", flags.total_batch, o.step.B, o.step.T),
        "--total-batch", "change it, --batch or --seq");
  }
  o.step.micro_batches = flags.total_batch > 0 ? flags.total_batch / micro : 1;
  o.validate();
  return o;
}

// The first flags with which a step fits: computing more again at the same --batch, then smaller
// micro-batches, which divide this one so that --total-batch can stay. Where none fits, what the least of
// them needs.
std::string what_fits(Context& context, const Trainer& trainer, std::size_t available) {
  const StepOptions asked = trainer.options().step;
  const std::size_t others = trainer.planned_bytes() - trainer.plan().total_bytes();
  const std::pair<Recompute, const char*> kinds[] = {{Recompute::none, "none"},
                                                     {Recompute::gelu, "gelu"},
                                                     {Recompute::norm, "norm"},
                                                     {Recompute::block, "block"}};
  const bool from_output = asked.norms == NormBackwardFrom::output;  // which norm and block cannot have
  const std::pair<Recompute, const char*>& most = kinds[from_output ? 1 : 3];
  std::size_t needed = 0;
  for (std::int64_t batch = asked.B; batch >= 1; --batch) {
    if (asked.B % batch != 0) continue;
    for (const auto& [recompute, name] : kinds) {
      const bool between = recompute != asked.recompute && recompute != most.first;
      if (recompute < asked.recompute || recompute > most.first || (batch < asked.B && between)) continue;
      StepOptions o = asked;
      o.B = batch;
      o.recompute = recompute;
      if (asked.micro_batches > 1) o.micro_batches *= asked.B / batch;
      needed = TrainingStep(context, o).plan().total_bytes() + others;
      if (needed > available) continue;
      return fmt::format("{}{}would need {}", batch < asked.B ? fmt::format("--batch {} ", batch) : "",
                         recompute == asked.recompute ? "" : fmt::format("--recompute {} ", name),
                         human_bytes(static_cast<double>(needed)));
    }
  }
  return fmt::format("use a smaller model or --seq: --batch 1 --recompute {} would need {}", most.second,
                     human_bytes(static_cast<double>(needed)));
}

// Refuses what cannot fit; the plan has been printed.
void check_memory(Context& context, const Trainer& trainer) {
  const std::size_t needed = trainer.planned_bytes(), available = available_memory(context.device().device);
  if (needed <= available) return;
  throw Error(fmt::format("needs {} of memory, {} are available", human_bytes(static_cast<double>(needed)),
                          human_bytes(static_cast<double>(available))),
              "memory plan", what_fits(context, trainer, available));
}

class Watcher {
 public:
  Watcher(double peak_flops, const TrainOptions& options)
      : peak_flops_(peak_flops), every_(std::max<std::int64_t>(1, options.schedule.steps / 50)) {
    if (path_exists(options.data / "tokenizer.json")) tokenizer_ = text::Tokenizer::load(options.data);
  }

  TrainObserver observer() {
    TrainObserver o;
    o.step = [this](const StepReport& r) { step(r); };
    o.validation = [this](std::int64_t step, double loss) {
      print(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", step, loss, std::exp(loss)));
    };
    o.sample = [this](std::int64_t step, const std::vector<std::int32_t>& tokens) {
      print(fmt::format("step {}: sample: {}", step, decode(tokens)));
    };
    o.checkpoint = [this](const fs::path& path) { print(fmt::format("checkpoint {}", path.string())); };
    o.notice = [this](const std::string& text) { print(text); };
    o.started = take_signals;
    return o;
  }

  std::int64_t skipped() const { return skipped_; }  // updates

 private:
  void step(const StepReport& r) {
    const std::string text = fmt::format(
        "step {}/{} | loss {:.4f} | norm {:.3f} | lr {:.2e} | {:.0f} ms | {:.0f} tok/s | {:.0f}% of peak | "
        "{} left",
        r.step, r.steps, r.loss, r.gradient_norm, r.learning_rate, r.seconds * 1e3, r.tokens_per_second,
        100 * r.flops_per_second / peak_flops_, human_seconds(r.seconds_left));
    if (!r.skipped.empty()) {
      ++skipped_;
      print(fmt::format("step {}: update skipped: {}", r.step, r.skipped));
    }
    line_.show(text);
    if (r.step == 1 || r.step == r.steps || (!line_.on_terminal() && r.step % every_ == 0)) print(text);
  }

  void print(const std::string& text) {
    line_.clear();
    const std::string line = text + "\n";
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fflush(stdout) != 0) {
      stop_requested = true;
    }
  }

  std::string decode(const std::vector<std::int32_t>& tokens) const {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (!tokenizer_) {
        text += fmt::format("{} ", token);
      } else if (static_cast<std::size_t>(token) < tokenizer_->vocab_size()) {
        text += tokenizer_->bytes_of(static_cast<text::TokenId>(token));
      }
    }
    return text;
  }

  double peak_flops_;
  std::int64_t every_;  // steps between lines where there is no terminal
  std::int64_t skipped_ = 0;
  std::optional<text::Tokenizer> tokenizer_;
  ProgressLine line_;
};

void print_start(const Trainer& trainer, const Context& context) {
  const TrainOptions& o = trainer.options();
  const GPT2Config& m = o.step.model;
  fmt::print("model: {} layers, {} heads, {} channels, vocabulary {}, context {}: {} parameters\n", m.layers,
             m.heads, m.channels, m.vocab, m.context, human_count(m.parameters()));
  fmt::print("step: {} × {} × {} = {} tokens in {}{} on {}, {} threads\n", o.step.micro_batches, o.step.B,
             o.step.T, human_count(o.step.micro_batches * o.step.B * o.step.T), name_of(o.step.dtype),
             o.step.master_weights ? "" : " without master weights", context.device().name,
             context.threads());
  fmt::print("memory plan:\n{}", trainer.plan().summary());
  if (const std::size_t sampling = trainer.planned_bytes() - trainer.plan().total_bytes(); sampling > 0) {
    fmt::print("  and for samples {}\n", human_bytes(static_cast<double>(sampling)));
  }
  if (const auto step = trainer.resumed_step()) fmt::print("resumed after step {}\n", *step);
  require_whole_output();
}

// The checkpoint that --resume goes on from, whose options become the flags.
std::optional<SavedRun> resumed_run(Flags& flags, CLI::App& command) {
  if (!flags.options.resume) return std::nullopt;
  auto saved = newest_readable(flags.options.out);
  if (saved) restore_flags(flags, command, *saved);
  return saved;
}

void report_end(const TrainOptions& options, bool finished, std::int64_t skipped) {
  const std::string run = options.out.string();
  if (skipped > 0) fmt::print("{} updates were skipped\n", skipped);
  if (finished) {
    fmt::print("finished: model in {}\n", (options.out / "model").string());
    return;
  }
  if (std::ferror(stdout) != 0) {
    throw Error("cannot be written", "standard output",
                "a checkpoint is written: check the free space or the program that reads it, and go on with "
                "--resume");
  }
  fmt::print("stopped: a checkpoint and model are in {}; `warpwright train --resume --out {}` goes on\n", run,
             run);
  require_whole_output();
  throw StoppedBySignal{stop_signal};
}

void run(Flags& flags, CLI::App& command) {
  const auto saved = resumed_run(flags, command);
  if (!saved) check_data(flags);
  const TrainOptions options = finished_options(flags);
  if (saved && is_finished(options.out, saved->state, options.schedule.steps)) {
    compare_options(saved->state.options, identity_of(options), saved->checkpoint, {});
    clear_leftovers(options.out);
    fmt::print("finished already after step {}: model in {}; a larger --steps goes on\n", saved->state.step,
               (options.out / "model").string());
    return;
  }
  check_data(flags);
  Context context(flags.device.context_options(flags.dtype), flags.device.place());
  constexpr double kPeakSeconds = 0.05;
  Watcher watcher(measure_peak_flops(context.device(), kPeakSeconds).of(options.step.dtype), options);
  Trainer trainer(context, options, watcher.observer());
  print_start(trainer, context);
  if (flags.show_plan) fmt::print("{}", trainer.plan().details());
  check_memory(context, trainer);
  std::signal(SIGPIPE, SIG_IGN);
  const bool finished = trainer.run(stop_requested);
  report_end(options, finished, watcher.skipped());
}

void add_model_flags(CLI::App& c, Flags& f) {
  c.add_option("--model", f.model,
               "gpt2:124M, :355M, :774M, :1558M or gpt2:dN (N layers) from random weights; or a folder; "
               "default: a free size");
  c.add_option("--layers", f.free.layers, "Layers; default: those of --model")->check(at_least(1));
  c.add_option("--heads", f.free.heads, "Attention heads; default: those of --model")->check(at_least(1));
  c.add_option("--channels", f.free.channels, "Channels; default: those of --model")->check(at_least(1));
  c.add_option("--vocab", f.free.vocab, "Vocabulary; default: that of the data")->check(at_least(1));
  c.add_option("--context", f.free.context,
               "Most positions; default: 1024 for gpt2:NAME, --seq for a free size")
      ->check(at_least(1));
}

void add_step_flags(CLI::App& c, Flags& f) {
  StepOptions& s = f.options.step;
  s.T = 0;
  c.add_option("--dtype", f.dtype,
               "fp32, tf32 (GPU: products rounded to it), or bf16 (norms' weights stay fp32)")
      ->capture_default_str()
      ->check(one_of({"fp32", "tf32", "bf16"}));
  c.add_option("--master-weights", f.master_weights,
               "Master weights kept with bf16 weights: fp32, or none (stochastic rounding; saves 4 bytes per "
               "parameter)")
      ->capture_default_str()
      ->check(one_of({"fp32", "none"}));
  c.add_option("--batch", s.B, "Sequences in a micro-batch")->capture_default_str()->check(at_least(1));
  c.add_option("--seq", s.T, "Tokens in a sequence; default: the context")->check(at_least(1));
  c.add_option("--total-batch", f.total_batch,
               "Tokens in a step, gathered over micro-batches; default: one micro-batch")
      ->check(at_least(0));
  c.add_option("--recompute", f.recompute,
               "What the backward pass recomputes to save memory: none, gelu, norm (and gelu), block (all)")
      ->capture_default_str()
      ->check(one_of({"none", "gelu", "norm", "block"}));
  c.add_flag("--memory-efficient-norm", f.memory_efficient_norm,
             "Layer normalization's backward from its output instead of its input, which is then not kept");
  c.add_option("--weight-decay", s.weight_decay, "Decoupled weight decay of the matrices")
      ->capture_default_str();
  c.add_flag("--decay-all", s.decay_all, "Decay biases and layer normalization too");
  c.add_option("--beta1", s.beta1, "AdamW's decay of the first moment")->capture_default_str();
  c.add_option("--beta2", s.beta2, "AdamW's decay of the second moment")->capture_default_str();
  c.add_option("--eps", s.eps, "AdamW's epsilon")->capture_default_str();
  c.add_option("--clip", s.clip, "Largest gradient norm; 0: do not clip")->capture_default_str();
}

void add_schedule_flags(CLI::App& c, Flags& f) {
  Schedule& s = f.options.schedule;
  s.steps = 1000;
  c.add_option("--steps", s.steps, "Steps of the whole run")->capture_default_str();
  c.add_option("--lr", s.peak, "Peak learning rate")->capture_default_str();
  c.add_option("--warmup", s.warmup, "Steps of linear warm-up")->capture_default_str();
  c.add_option("--schedule", f.schedule, "cosine, linear, constant or wsd (warm-up, stable, decay)")
      ->capture_default_str()
      ->check(one_of({"cosine", "linear", "constant", "wsd"}));
  c.add_option("--final-lr-fraction", s.final_fraction,
               "Learning rate of the last step, as a share of the peak")
      ->capture_default_str();
  c.add_option("--decay-fraction", s.decay_fraction, "Share of the steps in which wsd decays")
      ->capture_default_str();
}

void add_run_flags(CLI::App& c, Flags& f) {
  TrainOptions& o = f.options;
  c.add_option("--data", o.data, "Folder of token shards; default: with --resume, the checkpoint's");
  c.add_option("--out", o.out, "Folder of the run: model/, checkpoints/, metrics.jsonl")->required();
  c.add_option("--seed", o.seed,
               "Of the initial weights, the data order, the samples and stochastic rounding")
      ->capture_default_str();
  c.add_option("--val-every", o.val_every, "Steps between validations; 0: none")->capture_default_str();
  c.add_option("--val-batches", o.val_batches, "Micro-batches of a validation; 0: the whole split")
      ->capture_default_str();
  c.add_option("--sample-every", o.sample_every, "Steps between samples of text; 0: none")
      ->capture_default_str();
  c.add_option("--sample-tokens", o.sample_tokens, "Tokens of a sample")->capture_default_str();
  c.add_option("--checkpoint-minutes", o.checkpoint_minutes, "Minutes between checkpoints; 0: none by time")
      ->capture_default_str();
  c.add_option("--checkpoint-every", o.checkpoint_every, "Steps between checkpoints; 0: none by steps")
      ->capture_default_str();
  c.add_option("--keep", o.keep, "Newest checkpoints to keep; 0: all")->capture_default_str();
  c.add_option("--keep-every", o.keep_every,
               "Also keep checkpoints whose step is a multiple of this; 0: none")
      ->capture_default_str();
  c.add_flag("--resume", o.resume,
             "Go on from the newest checkpoint in --out, with its options but for those given here");
  add_data_change_flag(c, o.allow_data_change);
  add_tokenizer_change_flag(c, o.allow_tokenizer_change);
  c.add_flag("--overfit", o.overfit,
             "Train every step on the first step's samples: a check that learning works");
  c.add_option("--on-nonfinite", f.on_non_finite,
               "stop or skip the update where loss or gradients are not finite")
      ->capture_default_str()
      ->check(one_of({"stop", "skip"}));
  c.add_option("--skip-loss-z", o.skip_loss_z,
               "Skip an update if its loss is this many standard deviations above the last 128; 0: never")
      ->capture_default_str();
  c.add_option("--skip-norm-z", o.skip_norm_z, "The same for the gradient norm; 0: never")
      ->capture_default_str();
  c.add_flag("--plan", f.show_plan, "Print the place of each tensor in memory before the start");
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a GPT-2 on token shards");
  auto f = std::make_shared<Flags>();
  add_model_flags(*command, *f);
  add_run_flags(*command, *f);
  add_step_flags(*command, *f);
  add_schedule_flags(*command, *f);
  f->device.add_to(*command);
  command->callback([f, command] { run(*f, *command); });
}

}  // namespace warpwright::cli
