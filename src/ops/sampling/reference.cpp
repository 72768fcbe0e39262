// The oracle: it sorts all tokens, and takes the cuts in the order of the contract.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/element.hpp"
#include "ops/sampling/kernels.hpp"

namespace warpwright::ops::sampling {
namespace {

struct Candidate {
  std::int32_t token;
  float logit;
  std::uint64_t weight = 0;
};

std::uint64_t total_weight(const std::vector<Candidate>& candidates) {
  std::uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// The likeliest first.
std::vector<Candidate> sorted(const Sampling& a, std::int64_t m, const Options& o) {
  const std::int64_t V = a.logits.shape[1];
  const auto* words = static_cast<const std::uint32_t*>(a.seen.data);
  const std::uint32_t* seen = words ? words + m * a.seen.shape[1] : nullptr;
  std::vector<Candidate> all;
  for (std::int64_t v = 0; v < V; ++v) {
    auto logit = static_cast<float>(load_element(a.logits, m * a.logits.strides[0] + v));
    if (is_seen(seen, v)) logit = penalized(logit, o.penalty);
    all.push_back({static_cast<std::int32_t>(v), logit});
  }
  std::ranges::sort(all, [](const Candidate& x, const Candidate& y) {
    return x.logit != y.logit ? x.logit > y.logit : x.token < y.token;
  });
  return all;
}

std::int32_t draw(std::vector<Candidate> candidates, const Options& o) {
  const double largest = candidates.front().logit;
  if (o.temperature == 0) return candidates.front().token;
  for (Candidate& c : candidates) {
    c.weight = static_cast<std::uint64_t>(std::exp((c.logit - largest) / o.temperature) * kOne);
  }
  if (o.top_k > 0) {
    candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(o.top_k)), candidates.front());
  }
  if (o.top_p < 1) {
    const std::uint64_t wanted = least_weight(o.top_p, total_weight(candidates));
    std::size_t kept = 0;
    for (std::uint64_t sum = 0; sum < wanted && kept < candidates.size(); ++kept)
      sum += candidates[kept].weight;
    candidates.resize(kept, candidates.front());
  }
  std::erase_if(candidates,
                [&](const Candidate& c) { return static_cast<double>(c.weight) < o.min_p * kOne; });
  std::ranges::sort(candidates, {}, &Candidate::token);
  std::uint64_t rest = drawn_weight(o.random, total_weight(candidates));
  const auto chosen = std::ranges::find_if(candidates, [&](const Candidate& c) {
    if (rest < c.weight) return true;
    rest -= c.weight;
    return false;
  });
  return chosen->token;
}

void reference(const Context&, const Sampling& a) {
  for (std::int64_t m = 0; m < a.logits.shape[0]; ++m) {
    bool finite = true;
    for (std::int64_t v = 0; v < a.logits.shape[1]; ++v) {
      finite = finite && std::isfinite(load_element(a.logits, m * a.logits.strides[0] + v));
    }
    const Options o = Options::of_row(a, m);
    store_token(a, m, finite ? draw(sorted(a, m, o), o) : -1);
  }
}

}  // namespace
}  // namespace warpwright::ops::sampling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Sampling, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = sampling::reference};

}  // namespace warpwright::ops
