#include "infer/sampling_options.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "runtime/philox.hpp"

namespace warpwright {

void SamplingOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw UsageError(fmt::format("is {}", temperature), "--temperature", "give 0 or a positive number");
  }
  if (top_k < 0)
    throw UsageError(fmt::format("is {}", top_k), "--top-k", "give 0 (all tokens) or a positive number");
  if (!(top_p > 0 && top_p <= 1))
    throw UsageError(fmt::format("is {}", top_p), "--top-p", "give a number in (0, 1]");
  if (!(min_p >= 0 && min_p <= 1))
    throw UsageError(fmt::format("is {}", min_p), "--min-p", "give a number in [0, 1]");
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    throw UsageError(fmt::format("is {}", repetition_penalty), "--repetition-penalty",
                     "give a positive number; 1 for none");
  }
}

std::uint64_t SamplingOptions::random_bits(std::uint64_t position) const {
  constexpr std::uint32_t kSampling = 0x53414d50;  // a stream of its own: "SAMP"
  const PhiloxCounter words = PhiloxStream(seed, kSampling).block(position);
  return std::uint64_t{words[0]} << 32 | words[1];
}

}  // namespace warpwright
