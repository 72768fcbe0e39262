#include "cli/step_timing.hpp"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "runtime/philox.hpp"

namespace warpwright::cli {
namespace {

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

void launch_gradients(TrainingStep& step, std::int64_t vocab) {
  step.begin();
  fill_random(step.host_batch(), vocab);
  step.forward_backward();
  step.gradient_norm();
}

// Does not wait for the step's end.
void launch_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  launch_gradients(step, vocab);
  step.update(1e-4, index + 1);
}

void run_step(TrainingStep& step, std::int64_t index, std::int64_t vocab) {
  launch_step(step, index, vocab);
  step.collect();
}

}  // namespace

std::vector<double> timed_steps(Context& context, TrainingStep& step, std::int64_t count,
                                std::int64_t vocab) {
  for (int i = 0; i < 3; ++i) run_step(step, i, vocab);  // touches the memory's pages, captures graphs
  const bool ahead = context.device().device.kind == DeviceKind::cuda;
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

OpTable table_of_step(Context& context, TrainingStep& step, std::int64_t vocab, OpTable::Ceiling ceiling) {
  OpTable table(std::move(ceiling));
  bool first = true;  // runs operation by operation for the first time and is left out
  bool updating = false;
  const Timing timing(context, [&](Context::CallRecord call) {
    if (first) return;
    const std::string of_muon = fmt::format("muon.{}", call.operation);
    const bool is_named = call.operation == "adamw" || call.operation.starts_with("muon.");
    if (updating && !is_named) call.operation = of_muon;
    table.add(call);
  });
  run_step(step, 0, vocab);
  first = false;
  launch_gradients(step, vocab);
  updating = true;
  step.update(1e-4, 1);
  step.collect();
  return table;
}

}  // namespace warpwright::cli
