// Shared by the kernels.
#pragma once

#include <limits>

#include "ops/sampling/sampling.hpp"

namespace warpwright::ops::sampling {

inline constexpr int kMostTokens = 1 << 23;  // of a row: the sum of their weights fits 64 bits
inline constexpr double kOne = 0x1p40;       // the weight of the likeliest token

// A factor that fp32 holds.
constexpr float bounded_factor(double factor) {
  return static_cast<float>(!(factor > 0x1p-126) ? 0x1p-126 : factor > 0x1p127 ? 0x1p127 : factor);
}

// The options of one row.
struct Options {
  double temperature;
  std::int64_t top_k;
  double top_p, min_p;
  float penalty;
  std::uint64_t random;

  static Options of_row(const Sampling& a, std::int64_t m) {
    return {a.temperature.as<double>()[m],
            a.top_k.as<std::int64_t>()[m],
            a.top_p.as<double>()[m],
            a.min_p.as<double>()[m],
            bounded_factor(a.repetition_penalty.as<double>()[m]),
            static_cast<std::uint64_t>(a.random.as<std::int64_t>()[m])};
  }
};

inline void store_token(const Sampling& a, std::int64_t m, std::int32_t drawn) {
  a.token.as<std::int32_t>()[m] = drawn;
  if (a.next_input) a.next_input.as<std::int32_t>()[m] = drawn < 0 ? 0 : drawn;
}

// Bounded, so that no penalty makes a finite logit infinite. A logit that is not finite stays so.
constexpr float penalized(float logit, float penalty) {
  if (logit - logit != 0) return logit;
  constexpr float kMost = std::numeric_limits<float>::max();
  const float value = logit < 0 ? logit * penalty : logit / penalty;
  return value < -kMost ? -kMost : value > kMost ? kMost : value;
}
constexpr bool is_seen(const std::uint32_t* seen, std::int64_t v) {
  return seen && (seen[v / 32] >> (v % 32) & 1) != 0;
}

// The least sum of weights that has this share of the total; at least 1.
constexpr std::uint64_t least_weight(double share, std::uint64_t total) {
  const double exact = share * static_cast<double>(total);
  if (!(exact > 0)) return 1;
  if (exact >= static_cast<double>(total)) return total;
  const auto whole = static_cast<std::uint64_t>(exact);
  return static_cast<double>(whole) < exact ? whole + 1 : whole;
}

// ⌊random · total / 2^64⌋.
inline std::uint64_t drawn_weight(std::uint64_t random, std::uint64_t total) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{random} * total >> 64);
}

}  // namespace warpwright::ops::sampling
