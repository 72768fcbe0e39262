// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright {

struct LearningRateSchedule {
  enum class Kind : std::uint8_t { cosine, linear, constant, wsd };

  Kind kind = Kind::cosine;
  double peak = 3e-4;
  std::int64_t warmup = 0;      // steps; step s < warmup runs at peak·(s + 1)/warmup
  std::int64_t steps = 0;       // of the whole run
  double final_fraction = 0;    // the last learning rate as a share of the peak
  double decay_fraction = 0.2;  // wsd: the share of the steps that decays, at the end

  // The learning rate of step s in [0, steps). cosine and linear fall from the peak right after the warm-up
  // to final_fraction at the end; constant stays; wsd (warm-up, stable, decay) stays and falls linearly in
  // the last decay_fraction.
  double learning_rate(std::int64_t s) const;
  void validate() const;  // throws UsageError
};

inline constexpr LearningRateSchedule::Kind kScheduleKinds[] = {
    LearningRateSchedule::Kind::cosine, LearningRateSchedule::Kind::linear,
    LearningRateSchedule::Kind::constant, LearningRateSchedule::Kind::wsd};
std::string_view name_of(LearningRateSchedule::Kind kind);

}  // namespace warpwright
