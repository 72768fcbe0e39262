#include "infer/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/error.hpp"

namespace warpwright {
namespace {

struct Candidate {
  std::int32_t token;
  double weight;  // exp((logit − largest) / temperature)
};

// Both loops use vectors, which the standard library's do not.
bool all_finite(std::span<const float> logits) {
  float sum = 0;  // NaN if any is not finite
#pragma omp simd reduction(+ : sum)
  for (std::size_t v = 0; v < logits.size(); ++v) sum += logits[v] * 0;
  return sum == 0;
}
float largest_of(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::size_t v = 0; v < logits.size(); ++v) largest = std::max(largest, logits[v]);
  return largest;
}

// Most likely first; equal ones by token, so that the order never depends on the library's sort.
bool more_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

std::vector<Candidate> weigh(std::span<const float> logits, double largest, double temperature) {
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t v = 0; v < logits.size(); ++v) {
    candidates[v] = {static_cast<std::int32_t>(v),
                     std::exp((static_cast<double>(logits[v]) - largest) / temperature)};
  }
  return candidates;
}

void keep_top_k(std::vector<Candidate>& candidates, std::int64_t k) {
  if (k == 0 || k >= static_cast<std::int64_t>(candidates.size())) return;
  std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), more_likely);
  candidates.resize(static_cast<std::size_t>(k));
}

// The shortest run of most likely tokens whose share reaches p.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
  if (p >= 1) return;
  std::sort(candidates.begin(), candidates.end(), more_likely);
  double total = 0, sum = 0;
  for (const Candidate& c : candidates) total += c.weight;
  std::size_t kept = 0;
  while (kept < candidates.size() && sum < p * total) sum += candidates[kept++].weight;
  candidates.resize(std::max<std::size_t>(kept, 1));
}

void keep_min_p(std::vector<Candidate>& candidates, double p) {
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < p; });  // the most likely has 1
}

// Bounded, so that no penalty makes a finite logit infinite.
std::vector<float> penalized(std::span<const float> logits, std::span<const std::int32_t> sequence,
                             double penalty) {
  constexpr double kMost = std::numeric_limits<float>::max();
  std::vector<float> result(logits.begin(), logits.end());
  for (const std::int32_t token : std::set<std::int32_t>(sequence.begin(), sequence.end())) {
    float& logit = result[static_cast<std::size_t>(token)];
    const double value = logit < 0 ? logit * penalty : logit / penalty;
    logit = static_cast<float>(std::clamp(value, -kMost, kMost));
  }
  return result;
}

}  // namespace

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

std::int32_t sample(const SamplingOptions& options, std::uint64_t position, std::span<const float> logits,
                    std::span<const std::int32_t> sequence) {
  if (!all_finite(logits)) {
    throw Error("a logit is not finite", fmt::format("position {}", position), "check the model's weights");
  }
  std::vector<float> changed;
  if (options.repetition_penalty != 1) {
    logits = changed = penalized(logits, sequence, options.repetition_penalty);
  }
  const float best = largest_of(logits);
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::ranges::find(logits, best) - logits.begin());
  }
  std::vector<Candidate> candidates = weigh(logits, static_cast<double>(best), options.temperature);
  keep_top_k(candidates, options.top_k);
  keep_top_p(candidates, options.top_p);
  keep_min_p(candidates, options.min_p);
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  constexpr std::uint32_t kSampling = 0x53414d50;  // a stream of its own: "SAMP"
  double rest = PhiloxStream(options.seed, kSampling).uniform(position) * total;
  for (const Candidate& c : candidates) {
    rest -= c.weight;
    if (rest < 0) return c.token;
  }
  return candidates.back().token;
}

}  // namespace warpwright
