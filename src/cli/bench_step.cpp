// warpwright bench step: a whole training step, by operation.
#include <fmt/format.h>

#include <algorithm>
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
#include "cli/step_timing.hpp"
#include "cli/tuned_flags.hpp"
#include "core/error.hpp"
#include "model/families.hpp"
#include "runtime/ceiling.hpp"
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
  m.seconds = timed_steps(context, step, steps, vocab);
  m.table = table_of_step(context, step, vocab,
                          [peak = m.peak, bandwidth = m.bandwidth](const Context::CallRecord& call) {
                            return std::max(call.flops / peak.of(call.dtype), call.bytes / bandwidth.mixed);
                          });
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
                              {"optimizer", flags.step.optimizer},
                              {"recompute", flags.step.recompute},
                              {"logits_mib", flags.options.logits_mib},
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
  flags.step.finish(options, decoder_of(flags.model));
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
  CLI::App* command = bench.add_subcommand("step", "Time a training step, by operation");
  auto f = std::make_shared<BenchStepFlags>();
  command->add_option("--model", f->model, fmt::format("{}; or a folder, for its sizes", known_sizes()))
      ->capture_default_str();
  f->step.add_to(*command, f->options);
  command->add_option("--steps", f->steps, "Steps to time")->capture_default_str();
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  f->tuned.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
