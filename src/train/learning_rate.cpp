#include "train/learning_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "core/error.hpp"

namespace warpwright {

std::string_view name_of(LearningRateSchedule::Kind kind) {
  constexpr std::string_view kNames[] = {"cosine", "linear", "constant", "wsd"};
  return kNames[static_cast<int>(kind)];
}

double LearningRateSchedule::learning_rate(std::int64_t s) const {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  if (s < warmup) return peak * d(s + 1) / d(warmup);
  if (kind == Kind::constant) return peak;
  const std::int64_t decay_steps =
      kind == Kind::wsd ? std::llround(decay_fraction * d(steps)) : steps - warmup;
  const std::int64_t decay_start = std::max(warmup, steps - decay_steps);
  if (s < decay_start) return peak;
  // 0 on the step before the decay, 1 on the last step.
  const double progress = d(s - decay_start + 1) / d(std::max<std::int64_t>(steps - decay_start, 1));
  const double remaining =
      kind == Kind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return peak * (final_fraction + (1 - final_fraction) * remaining);
}

void LearningRateSchedule::validate() const {
  const auto check = [](bool good, const char* flag, const std::string& what, const char* remedy) {
    if (!good) throw UsageError(what, flag, remedy);
  };
  check(peak > 0 && std::isfinite(peak), "--lr", fmt::format("is {}", peak), "give a positive number");
  check(steps >= 1, "--steps", fmt::format("is {}", steps), "give at least 1");
  check(warmup >= 0 && warmup <= steps, "--warmup", fmt::format("is {} of {} steps", warmup, steps),
        "give 0 up to --steps");
  check(final_fraction >= 0 && final_fraction <= 1, "--final-lr-fraction",
        fmt::format("is {}", final_fraction), "give 0 to 1");
  check(decay_fraction > 0 && decay_fraction <= 1, "--decay-fraction", fmt::format("is {}", decay_fraction),
        "give a share of the steps in (0, 1]");
}

}  // namespace warpwright
