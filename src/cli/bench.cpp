// warpwright bench: the operations one by one, and a whole training step or encoder by operation.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/bench_encoder.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/op_table.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "ops/matmul/products_bench.hpp"
#include "ops/testing/bench.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/load.hpp"
#include "runtime/philox.hpp"
#include "train/step.hpp"
#include "train/trainer.hpp"

namespace warpwright::cli {
namespace {

struct Flags {
  std::vector<std::string> names;
  std::string model = "gpt2:124M", dtype = "fp32", recompute = "none", filter;
  StepOptions step;
  BenchEncoderFlags encoder;
  std::int64_t steps = 5, working_set = 0;
  std::string shapes;
  bool bias_gradient = false;
  double seconds = 0, within = 3;
  std::filesystem::path table, timeline;
  bool json = false, memory_efficient_norm = false;
  DeviceFlags device;
};

void warn_if_disturbed(const Disturbance& disturbance) {
  if (disturbance.found()) write_message(fmt::format("warpwright: bench: {}\n", disturbance.describe()));
}

// The least time of a call by what the machine reaches: arithmetic or memory, whichever takes longer.
double ceiling_seconds(const Context::CallRecord& call, const PeakFlops& peak, const Bandwidth& bandwidth) {
  return std::max(call.flops / peak.of(call.dtype), call.bytes / bandwidth.mixed);
}

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

// Without waiting for it.
void launch_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  step.begin();
  fill_random(step.host_batch(), vocab);
  step.forward_backward(ops::Store::assign);
  step.gradient_norm();
  step.update(1e-4, index + 1);
}

void run_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  launch_step(step, index, vocab);
  step.collect();
}

// Seconds of each of `count` steps from the end of the one before, with the next one launched meanwhile where
// the device works behind the host, as in training.
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

// One step under the timer, after one that runs operation by operation for the first time; the steps that are
// timed as a whole run without it.
OpTable table_of_step(Context& context, TrainingStep& step, std::int64_t vocab, const PeakFlops& peak,
                      const Bandwidth& bandwidth) {
  OpTable table([&](const Context::CallRecord& call) { return ceiling_seconds(call, peak, bandwidth); });
  context.set_timer([](const Context::CallRecord&) {});
  run_step(step, 0, vocab);
  context.set_timer([&](const Context::CallRecord& call) { table.add(call); });
  run_step(step, 0, vocab);
  context.set_timer(nullptr);
  return table;
}

void bench_step(Flags flags) {
  constexpr std::string_view kNamed = "gpt2:";
  if (flags.model.rfind(kNamed, 0) != 0)
    throw UsageError("is not gpt2:NAME", "--model", "use gpt2:124M or gpt2:dN");
  flags.step.model = GPT2Config::named(std::string_view(flags.model).substr(kNamed.size()));
  flags.step.dtype = compute_dtype(flags.dtype);
  flags.step.recompute = recompute_named(flags.recompute);
  if (flags.memory_efficient_norm) flags.step.norms = NormBackwardFrom::output;
  TrainOptions training;  // refuses what train does
  training.step = flags.step;
  training.schedule.steps = flags.steps;
  training.validate();
  const std::int64_t tokens = flags.step.B * flags.step.T;
  Context context(flags.device.context_options(flags.dtype), flags.device.place());
  TrainingStep step(context, flags.step);
  step.allocate();
  initialize(flags.step.model, 1, step.full_precision());
  step.round_masters();
  const OtherLoad others;
  const PeakFlops peak = measure_peak_flops(context.device(), 0.3);
  const Bandwidth bandwidth = measure_bandwidth(context.device(), std::size_t{1} << 30, 0.5);
  const std::int64_t vocab = flags.step.model.vocab;
  for (int i = 0; i < 3; ++i) run_step(step, i, vocab);  // takes the memory's pages, captures graphs
  const bool ahead = context.device().device.kind == DeviceKind::cuda;
  std::vector<double> seconds = timed_steps(step, flags.steps, ahead, vocab);
  const OpTable table = table_of_step(context, step, vocab, peak, bandwidth);
  const bool on_cpu = context.device().device.kind == DeviceKind::cpu;
  const Disturbance disturbance{on_cpu ? others.processors() : 0,
                                std::abs(measure_peak_flops(context.device(), 0.2).fp32 / peak.fp32 - 1)};
  warn_if_disturbed(disturbance);
  std::vector<double> milliseconds;  // in order
  for (const double s : seconds) milliseconds.push_back(s * 1e3);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double flops = flags.step.model.flops_per_token(flags.step.T) * static_cast<double>(tokens);
  const double share = flops / median / peak.of(flags.step.dtype);
  if (flags.json) {
    const nlohmann::json out = {{"model", flags.model},
                                {"dtype", flags.dtype},
                                {"recompute", flags.recompute},
                                {"memory_efficient_norm", flags.memory_efficient_norm},
                                {"machine", context.device().name},
                                {"threads", context.threads()},
                                {"batch", flags.step.B},
                                {"seq", flags.step.T},
                                {"planned_bytes", step.plan().total_bytes()},
                                {"ms", milliseconds},
                                {"ms_median", median * 1e3},
                                {"ms_min", seconds.front() * 1e3},
                                {"tokens_per_second", static_cast<double>(tokens) / median},
                                {"share_of_peak", share},
                                {"other_processors", disturbance.other_processors},
                                {"ceiling_change", disturbance.ceiling_change},
                                {"disturbed", disturbance.found()},
                                {"ops", table.to_json()}};
    fmt::print("{}\n", out.dump(2));
    return;
  }
  table.print();
  fmt::print(
      "{} {} B={} T={} on {} ({} threads): {:.1f} ms a step (median of {}, fastest {:.1f}), {:.0f} tokens/s, "
      "{:.0f}% of the peak of {:.0f} GFLOP/s; memory {:.1f} GB/s\n",
      flags.model, flags.dtype, flags.step.B, flags.step.T, context.device().name, context.threads(),
      median * 1e3, seconds.size(), seconds.front() * 1e3, static_cast<double>(tokens) / median, 100 * share,
      peak.of(flags.step.dtype) * 1e-9, bandwidth.mixed * 1e-9);
}

void run(const Flags& flags) {
  if (std::find(flags.names.begin(), flags.names.end(), "encoder") != flags.names.end()) {
    if (flags.names.size() > 1)
      throw UsageError("runs alone", "bench encoder", "name the operations in another call");
    BenchEncoderFlags encoder = flags.encoder;
    encoder.model = flags.model.rfind("gpt2:", 0) == 0 ? "minilm" : flags.model;
    encoder.dtype = flags.dtype;
    encoder.json = flags.json;
    encoder.repetitions = flags.steps;
    return bench_encoder(encoder, flags.device);
  }
  if (std::find(flags.names.begin(), flags.names.end(), "step") != flags.names.end()) {
    if (flags.names.size() > 1)
      throw UsageError("runs alone", "bench step", "name the operations in another call");
    return bench_step(flags);
  }
  if (!flags.shapes.empty()) {
    if (flags.names != std::vector<std::string>{"matmul"})
      throw UsageError("is for matmul alone", "--shapes", "use `bench matmul --shapes …`");
    ops::matmul::ProductBenchOptions products;
    products.context = flags.device.context_options(flags.dtype);
    products.device = flags.device.place();
    products.shapes = ops::matmul::product_shapes(flags.shapes);
    products.bias_gradient = flags.bias_gradient;
    products.rounds = static_cast<int>(std::clamp<std::int64_t>(flags.steps, 1, 1000));
    products.seconds = flags.seconds;
    products.within = flags.within;
    products.table = flags.table;
    products.json = flags.json;
    if (!flags.timeline.empty()) return ops::matmul::trace_products(products, flags.timeline, std::cout);
    return ops::matmul::bench_products(products, std::cout);
  }
  ops::BenchOptions options;
  options.context = flags.device.context_options(flags.dtype);
  options.device = flags.device.place();
  if (options.device.kind == DeviceKind::cuda) options.case_seconds = 0.2;  // hundreds of calls
  options.filter = flags.filter;
  options.working_set = static_cast<std::size_t>(flags.working_set) << 20;
  options.json = flags.json;
  warn_if_disturbed(ops::run_benches(flags.names, options, std::cout));
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "Time operations, or a whole training step, against this machine");
  auto f = std::make_shared<Flags>();
  std::vector<std::string> names = {"step", "encoder"};
  for (const std::string& name : ops::bench_names()) names.push_back(name);
  command
      ->add_option("what", f->names, "A training step, an encoder, or operations; default: every operation")
      ->check(one_of(names));
  command->add_option("--filter", f->filter,
                      "Only rows whose operation, variant and problem contain this; default: all");
  command
      ->add_option(
          "--working-set", f->working_set,
          "Operations: MiB that a case's tensors take at least, in copies that take turns; more than "
          "the last cache has, for speeds of memory (0: four times the second-level caches)")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--model", f->model,
                   "step: gpt2:124M, :355M, :774M, :1558M or gpt2:dN; encoder: minilm (default), bert-base, "
                   "bert-large or a folder")
      ->capture_default_str();
  command
      ->add_option("--dtype", f->dtype,
                   "step, encoder: fp32, tf32 (GPU), bf16 or (encoder, GPU) fp16; operations: tf32 allows it "
                   "in their products")
      ->capture_default_str()
      ->check(one_of({"fp32", "tf32", "bf16", "fp16"}));
  command->add_option("--batch", f->step.B, "step: sequences")->capture_default_str();
  command->add_option("--seq", f->step.T, "step: tokens in a sequence")->capture_default_str();
  command->add_option("--recompute", f->recompute, "step: none, gelu, norm or block, as in train")
      ->capture_default_str()
      ->check(one_of({"none", "gelu", "norm", "block"}));
  command->add_flag("--memory-efficient-norm", f->memory_efficient_norm, "step: as in train");
  command
      ->add_option("--steps", f->steps,
                   "step, encoder: how many to time; matmul --shapes: samples of each kernel")
      ->capture_default_str();
  command
      ->add_option("--lengths", f->encoder.lengths,
                   "encoder: tokens of its texts, as 5,17x3 or @FILE; several such lists with ; between them "
                   "are timed one "
                   "after the other")
      ->capture_default_str();
  command->add_flag("--batch-invariant", f->encoder.batch_invariant, "encoder: as in embed");
  command->add_flag(
      "--layers-alone", f->encoder.layers_alone,
      "encoder: its layers alone, hidden states to hidden states, without embedding and pooling");
  command->add_option("--batch-tokens", f->encoder.batch_tokens, "encoder: tokens in a batch")
      ->capture_default_str();
  command->add_option(
      "--shapes", f->shapes,
      "matmul on a GPU: every kernel beside every proposal of cuBLASLt's, and what the choice "
      "loses: gpt2, bert, random:COUNT[:SEED], MxNxK, gelu:MxNxK, residual:MxNxK or fp32:MxNxK, with commas "
      "between several; default: none");
  command->add_flag("--bias-gradient", f->bias_gradient, "matmul --shapes: dw makes dbias too");
  command->add_option("--seconds", f->seconds, "matmul --shapes: stop after so many; 0: never")
      ->capture_default_str();
  command
      ->add_option("--within", f->within,
                   "matmul --shapes: time the kernels that are predicted to take at most so many times as "
                   "long as the fastest, and the first choice of each schedule")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_option("--table", f->table,
                      "matmul --shapes: write all times, as tools/fit_matmul.py reads them; default: do not");
  command->add_option("--timeline", f->timeline,
                      "matmul --shapes: draw when a block of the first forward multiplies and when it "
                      "stores, SVG; default: do not");
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
