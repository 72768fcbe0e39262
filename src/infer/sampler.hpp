// Drawing the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/philox.hpp"

namespace warpwright {

struct SamplingOptions {
  double temperature = 1;  // ≥ 0; 0 takes the largest logit
  std::int64_t top_k = 0;  // keep the k largest; 0: all
  double top_p = 1;        // keep the most likely tokens that together reach this probability; (0, 1]
  std::uint64_t seed = 0;

  void validate() const;  // throws UsageError
};

// The token for one position: a pure function of options, position and logits. The order of the cuts is
// temperature, top-k, top-p, as in Hugging Face's generate. Logits that are not finite are an Error.
std::int32_t sample(const SamplingOptions& options, std::uint64_t position, std::span<const float> logits);

}  // namespace warpwright
