// The choices of a sequence when its next token is drawn (ops/sampling/sampling.hpp).
#pragma once

#include <cstdint>

namespace warpwright {

struct SamplingOptions {
  double temperature = 1;  // ≥ 0; 0 takes the largest logit
  std::int64_t top_k = 0;  // keep the k largest; 0: all
  double top_p = 1;        // keep the most likely tokens that together reach this probability; (0, 1]
  double min_p = 0;        // keep tokens that have this share of the most likely one's probability; [0, 1]
  double repetition_penalty = 1;  // > 0; for tokens that the sequence has
  std::uint64_t seed = 0;

  // Throws UsageError, whose place is the option's name here, for a value out of range, and for top_k, top_p
  // or min_p with temperature 0.
  void validate() const;
  // The 64 random bits for the token at this position of the generated text.
  std::uint64_t random_bits(std::uint64_t position) const;
};

}  // namespace warpwright
