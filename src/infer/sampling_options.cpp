#include "infer/sampling_options.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "runtime/philox.hpp"

namespace warpwright {

void SamplingOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw UsageError(fmt::format("is {}", temperature), "temperature", "give 0 or a positive number");
  }
  if (top_k < 0)
    throw UsageError(fmt::format("is {}", top_k), "top_k", "give 0 (all tokens) or a positive number");
  if (!(top_p > 0 && top_p <= 1))
    throw UsageError(fmt::format("is {}", top_p), "top_p", "give a number in (0, 1]");
  if (!(min_p >= 0 && min_p <= 1))
    throw UsageError(fmt::format("is {}", min_p), "min_p", "give a number in [0, 1]");
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    throw UsageError(fmt::format("is {}", repetition_penalty), "repetition_penalty",
                     "give a positive number; 1 for none");
  }
  if (temperature != 0) return;
  const auto refuse = [](const char* option, auto value) {
    throw UsageError(fmt::format("is {}, but temperature 0 takes the most likely token", value), option,
                     "leave it out, or give a temperature above 0");
  };
  if (top_k > 0) refuse("top_k", top_k);
  if (top_p < 1) refuse("top_p", top_p);
  if (min_p > 0) refuse("min_p", min_p);
}

std::uint64_t SamplingOptions::random_bits(std::uint64_t position) const {
  constexpr std::uint32_t kSampling = 0x53414d50;  // a stream of its own: "SAMP"
  const PhiloxCounter words = PhiloxStream(seed, kSampling).block(position);
  return std::uint64_t{words[0]} << 32 | words[1];
}

}  // namespace warpwright
