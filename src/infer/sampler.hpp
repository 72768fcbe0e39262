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
  double min_p = 0;        // keep tokens that have this share of the most likely one's probability; [0, 1]
  // > 0. The positive logits of tokens that the sequence has are divided by it, the negative ones multiplied.
  // Source: Keskar et al. 2019, arXiv 1909.05858, and Hugging Face's rule for negative logits.
  double repetition_penalty = 1;
  std::uint64_t seed = 0;

  void validate() const;  // throws UsageError
};

// The token for one position: a pure function of options, position, logits and the sequence so far. The order
// of the steps is penalty, temperature, top-k, top-p, min-p, as in Hugging Face's generate. Logits that are
// not finite are an Error.
std::int32_t sample(const SamplingOptions& options, std::uint64_t position, std::span<const float> logits,
                    std::span<const std::int32_t> sequence);

}  // namespace warpwright
