// warpwright bench step: a whole training step of GPT-2, by operation.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/op_table.hpp"
#include "cli/step_flags.hpp"
#include "cli/tuned_flags.hpp"
#include "core/error.hpp"
#include "model/gpt2_decoder.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/philox.hpp"
#include "train/step.hpp"

namespace warpwright::cli {
namespace {

struct BenchStepFlags {
  std::string model = "gpt2:124M";
  StepFlags step;
  StepOptions options;
  std::int64_t steps = 5;
  bool json = false;
  DeviceFlags device;
  TunedFlags tuned;
};

void fill_random(const TrainingStep::HostBatch& batch, std::int64_t vocab) {
  const PhiloxStream stream(1, 1);
  for (std::int64_t n = 0; n < batch.targets.elements(); ++n) {
    const auto draw = [&](std::int64_t i) {
      return static_cast<std::int32_t>(stream.uniform(static_cast<std::uint64_t>(i)) *
                                       static_cast<double>(vocab));
    };
    batch.tokens.as<std::int32_t>()[n] = draw(n);
    batch.targets.as<std::int32_t>()[n] = draw(n + 1);
  }
}

// Does not wait for the step's end.
void launch_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  step.begin();
  fill_random(step.host_batch(), vocab);
  step.forward_backward();
  step.gradient_norm();
  step.update(1e-4, index + 1);
}

void run_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  launch_step(step, index, vocab);
  step.collect();
}

// Seconds of each of `count` steps, from the end of the step before. With `ahead`, the next step is launched
// meanwhile, as in training on a GPU.
std::vector<double> timed_steps(TrainingStep& step, std::int64_t count, bool ahead, std::int64_t vocab) {
  std::vector<double> seconds;
  std::int64_t launched = 0;
  auto last = std::chrono::steady_clock::now();
  while (static_cast<std::int64_t>(seconds.size()) < count) {
    if (!ahead) last = std::chrono::steady_clock::now();
    const std::int64_t done = static_cast<std::int64_t>(seconds.size());
    while (launched < count && launched - done < (ahead ? TrainingStep::kStepsInFlight : 1)) {
      launch_step(step, launched++, vocab);
    }
    step.collect();
    const auto now = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return seconds;
}

// The calls of one step. The first step with a timer runs operation by operation for the first time and is
// left out.
OpTable table_of_step(Context& context, TrainingStep& step, std::int64_t vocab, const PeakFlops& peak,
                      const Bandwidth& bandwidth) {
  OpTable table([=](const Context::CallRecord& call) {
    return std::max(call.flops / peak.of(call.dtype), call.bytes / bandwidth.mixed);
  });
  bool first = true;
  const Timing timing(context, [&](const Context::CallRecord& call) {
    if (!first) table.add(call);
  });
  run_step(step, 0, vocab);
  first = false;
  run_step(step, 0, vocab);
  return table;
}

struct StepMeasurement {
  PeakFlops peak;
  Bandwidth bandwidth;
  std::vector<double> seconds;  // of each step, in order
  OpTable table;
  Disturbance disturbance;
  double median = 0, least = 0;  // of `seconds`
  double tokens_per_second = 0, share_of_peak = 0;
};

StepMeasurement measure(Context& context, TrainingStep& step, const StepOptions& options,
                        std::int64_t steps) {
  StepMeasurement m;
  const OtherLoad others;
  const bool on_cpu = context.device().device.kind == DeviceKind::cpu;
  m.peak = measure_peak_flops(context.device(), 0.3);
  m.bandwidth = measure_bandwidth(context.device(), std::size_t{1} << 30, 0.5);
  const std::int64_t vocab = options.model->vocab();
  for (int i = 0; i < 3; ++i) run_step(step, i, vocab);  // touches the memory's pages, captures graphs
  m.seconds = timed_steps(step, steps, !on_cpu, vocab);
  m.table = table_of_step(context, step, vocab, m.peak, m.bandwidth);
  m.disturbance = {
      .other_processors = on_cpu ? others.processors() : 0,
      .ceiling_change = std::abs(measure_peak_flops(context.device(), 0.2).fp32 / m.peak.fp32 - 1)};
  std::vector<double> sorted = m.seconds;
  std::sort(sorted.begin(), sorted.end());
  m.median = sorted[sorted.size() / 2];
  m.least = sorted.front();
  const auto tokens = static_cast<double>(options.B * options.T);
  m.tokens_per_second = tokens / m.median;
  m.share_of_peak = options.model->flops_per_token(options.T) * tokens / m.median / m.peak.of(options.dtype);
  return m;
}

void print_json(const BenchStepFlags& flags, const StepMeasurement& m, const Context& context,
                const TrainingStep& step) {
  std::vector<double> milliseconds;
  for (const double s : m.seconds) milliseconds.push_back(s * 1e3);
  const nlohmann::json out = {{"model", flags.model},
                              {"dtype", flags.step.dtype},
                              {"recompute", flags.step.recompute},
                              {"memory_efficient_norm", flags.step.memory_efficient_norm},
                              {"machine", context.device().name},
                              {"threads", context.threads()},
                              {"batch", flags.options.B},
                              {"seq", flags.options.T},
                              {"planned_bytes", step.plan().total_bytes()},
                              {"ms", milliseconds},
                              {"ms_median", m.median * 1e3},
                              {"ms_min", m.least * 1e3},
                              {"tokens_per_second", m.tokens_per_second},
                              {"share_of_peak", m.share_of_peak},
                              {"other_processors", m.disturbance.other_processors},
                              {"ceiling_change", m.disturbance.ceiling_change},
                              {"disturbed", m.disturbance.found()},
                              {"ops", m.table.to_json()}};
  fmt::print("{}\n", out.dump(2));
}

void print_text(const BenchStepFlags& flags, const StepMeasurement& m, const Context& context) {
  m.table.print();
  fmt::print(
      "{} {} B={} T={} on {} ({} threads): {:.1f} ms a step (median of {}, fastest {:.1f}), {:.0f} tokens/s, "
      "{:.0f}% of the peak of {:.0f} GFLOP/s; memory {:.1f} GB/s\n",
      flags.model, flags.step.dtype, flags.options.B, flags.options.T, context.device().name,
      context.threads(), m.median * 1e3, m.seconds.size(), m.least * 1e3, m.tokens_per_second,
      100 * m.share_of_peak, m.peak.of(flags.options.dtype) * 1e-9, m.bandwidth.mixed * 1e-9);
}

void run(BenchStepFlags& flags) {
  StepOptions& options = flags.options;
  flags.step.finish(options, std::make_shared<GPT2Decoder>(gpt2_config_of(flags.model)));
  require_trainable(options, flags.steps);
  ContextOptions context_options = flags.device.context_options(flags.step.dtype);
  context_options.tuned = flags.tuned.load(flags.device.place(), notify_of("bench"));
  Context context(std::move(context_options), flags.device.place());
  TrainingStep step(context, options);
  step.allocate();
  options.model->initialize(1, step.full_precision());
  const StepMeasurement m = measure(context, step, options, flags.steps);
  warn_if_disturbed(m.disturbance);
  flags.json ? print_json(flags, m, context, step) : print_text(flags, m, context);
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("step", "Time a training step of GPT-2, by operation");
  auto f = std::make_shared<BenchStepFlags>();
  command
      ->add_option("--model", f->model,
                   "gpt2:124M, :355M, :774M, :1558M or gpt2:dN (N layers); or a folder, for its sizes")
      ->capture_default_str();
  f->step.add_to(*command, f->options);
  command->add_option("--steps", f->steps, "Steps to time")->capture_default_str();
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  f->tuned.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
