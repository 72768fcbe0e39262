#include "cli/train_memory.hpp"

#include <fmt/format.h>

#include "cli/command.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

// Names the first flags with which a step fits. It tries more recomputation at the same --batch, and then
// smaller slices, which divide this one so that --total-batch can stay. If nothing fits, it says what
// the smallest of them needs.
std::string what_fits(Context& context, const Trainer& trainer, const Comm& comm, std::size_t available) {
  const StepOptions asked = trainer.options().step;
  const std::size_t others = trainer.planned_bytes() - trainer.plan().total_bytes();
  const bool from_output = asked.norms == NormBackwardFrom::output;  // not possible with norm and block
  const Recompute most = from_output ? Recompute::gelu : Recompute::block;
  std::size_t needed = 0;
  for (std::int64_t batch = asked.B; batch >= 1; --batch) {
    if (asked.B % batch != 0) continue;
    for (const Recompute recompute : kRecomputes) {
      const bool between = recompute != asked.recompute && recompute != most;
      if (recompute < asked.recompute || recompute > most || (batch < asked.B && between)) continue;
      StepOptions o = asked;
      o.B = batch;
      o.recompute = recompute;
      if (asked.slices > 1) o.slices *= asked.B / batch;
      needed = TrainingStep(context, o, comm).plan().total_bytes() + others;
      if (needed > available) continue;
      return fmt::format(
          "{}{}would need {}", batch < asked.B ? fmt::format("--batch {} ", batch) : "",
          recompute == asked.recompute ? "" : fmt::format("--recompute {} ", name_of(recompute)),
          human_bytes(static_cast<double>(needed)));
    }
  }
  return fmt::format("use a smaller model or --seq: --batch 1 --recompute {} would need {}", name_of(most),
                     human_bytes(static_cast<double>(needed)));
}

}  // namespace

void check_memory(Context& context, const Trainer& trainer, const Comm& comm) {
  const std::size_t needed = trainer.planned_bytes(), available = available_memory(context.device().device);
  if (needed <= available) return;
  throw Error(fmt::format("needs {} of memory, {} are available", human_bytes(static_cast<double>(needed)),
                          human_bytes(static_cast<double>(available))),
              "memory plan", what_fits(context, trainer, comm, available));
}

}  // namespace warpwright::cli
