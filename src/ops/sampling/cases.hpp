// Rows of logits, shared by test and bench.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "ops/sampling/sampling.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::sampling {

struct Case {
  std::int64_t M, V;
  std::int64_t padding = 0;  // columns after the vocabulary
  double spread = 3;         // standard deviation of the logits
};

// A token, a warp's and a block's tile of tokens and their neighbours, GPT-2's vocabulary and Qwen's, padded
// rows, and logits among which many are equal.
inline std::vector<Case> test_cases() {
  return {{0, 7},        {3, 1},       {5, 2},          {4, 33},           {7, 255, 1},    {6, 256, 128},
          {5, 1000, 24}, {2, 8191, 1}, {2, 8192},       {3, 8193, 7},      {2, 16385, 63}, {3, 50257, 47},
          {1, 151936},   {40, 130, 6}, {4, 3000, 8, 0}, {5, 700, 4, 0.01}, {6, 520, 0, 60}};
}

// A step of generation with GPT-2's vocabulary, and one with Qwen's.
inline std::vector<Case> bench_cases() {
  return {{1, 50257, 47}, {64, 50257, 47}, {512, 50257, 47}, {1, 151936}, {64, 151936}};
}

struct Choice {
  double temperature = 1;
  std::int64_t top_k = 0;
  double top_p = 1, min_p = 0, penalty = 1;
};
inline constexpr Choice kGreedy{.temperature = 0};
inline constexpr Choice kChoices[] = {
    kGreedy,
    {},
    {.temperature = 0.1},
    {.top_k = 5},
    {.temperature = 0.8, .top_p = 0.9},
    {.min_p = 0.05},
    {.temperature = 0, .penalty = 1.7},
    {.temperature = 1.3, .top_k = 40, .top_p = 0.95, .min_p = 0.01, .penalty = 1.2},
    {.temperature = 1e300, .top_k = 3},
    {.temperature = 1e-300, .top_p = 0.5},
    {.top_k = 2000, .top_p = 0.9999}};

inline Tensor filled(testing::Fixture& f, DType dtype, std::int64_t M, auto value) {
  const Tensor tensor = f.output(dtype, {M});
  if (f.with_data()) std::fill_n(tensor.as<decltype(value)>(), M, value);
  return tensor;
}

// The rows take the choices in turn, beginning with this one.
inline Sampling make(const Case& c, DType dtype, std::size_t choice, testing::Fixture& f) {
  Sampling a;
  a.logits = f.random(dtype, {c.M, c.V + c.padding}, c.spread).slice(1, 0, c.V);
  a.temperature = filled(f, DType::f64, c.M, 1.0);
  a.top_k = filled(f, DType::i64, c.M, std::int64_t{0});
  a.top_p = filled(f, DType::f64, c.M, 1.0);
  a.min_p = filled(f, DType::f64, c.M, 0.0);
  a.repetition_penalty = filled(f, DType::f64, c.M, 1.0);
  a.random = filled(f, DType::i64, c.M, std::int64_t{0});
  const std::int64_t words = (c.V + 31) / 32;
  a.seen = f.random_integers({c.M, words}, -(1 << 30), (1 << 30) - 1);  // both values of every bit
  a.token = f.integers(std::vector<std::int32_t>(static_cast<std::size_t>(c.M), -7));
  std::mt19937_64 random(static_cast<std::uint64_t>(c.V) * 31 + choice);
  for (std::int64_t m = 0; f.with_data() && m < c.M; ++m) {
    const Choice& o = kChoices[(choice + static_cast<std::size_t>(m)) % std::size(kChoices)];
    a.temperature.as<double>()[m] = o.temperature;
    a.top_k.as<std::int64_t>()[m] = o.top_k;
    a.top_p.as<double>()[m] = o.top_p;
    a.min_p.as<double>()[m] = o.min_p;
    a.repetition_penalty.as<double>()[m] = o.penalty;
    a.random.as<std::int64_t>()[m] = static_cast<std::int64_t>(random());
  }
  return a;
}

}  // namespace warpwright::ops::sampling
