#include "infer/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/error.hpp"

namespace warpwright {
namespace {

// Probabilities 1/2, 1/4, 1/8, 1/16 and 1/16.
const std::vector<float> kLogits = {std::log(8.f), std::log(4.f), std::log(2.f), 0, 0};

// The tokens that are drawn at 2,000 positions.
std::set<std::int32_t> drawn(const SamplingOptions& options, const std::vector<std::int32_t>& sequence = {}) {
  std::set<std::int32_t> tokens;
  for (std::uint64_t position = 0; position < 2000; ++position) {
    tokens.insert(sample(options, position, kLogits, sequence));
  }
  return tokens;
}

TEST(SamplerTest, CutsKeepTheMostLikelyTokens) {
  using Tokens = std::set<std::int32_t>;
  EXPECT_EQ(drawn({}), (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 0}), Tokens{0});
  EXPECT_EQ(drawn({.top_k = 2}), (Tokens{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.7}), (Tokens{0, 1}));
  EXPECT_EQ(drawn({.min_p = 0.2}), (Tokens{0, 1, 2}));
  EXPECT_EQ(drawn({.min_p = 1}), Tokens{0});
  EXPECT_EQ(drawn({.top_k = 2, .min_p = 0.2}), (Tokens{0, 1}));
  // A temperature of 2 takes the square root of the odds: 1/2 becomes 0.71 of the most likely one's.
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.6}), (Tokens{0, 1}));
}

TEST(SamplerTest, TokensAppearAsOftenAsTheyAreLikely) {
  constexpr int kDraws = 20000;
  std::vector<int> counts(kLogits.size());
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sample({.seed = 5}, i, kLogits, {}))];
  }
  for (std::size_t token = 0; token < kLogits.size(); ++token) {
    const double p = std::exp(static_cast<double>(kLogits[token])) / 16;
    EXPECT_NEAR(counts[token], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << token;
  }
}

TEST(SamplerTest, APenaltyCountsEachTokenOnce) {
  const SamplingOptions greedy = {.temperature = 0, .repetition_penalty = 1.4};
  EXPECT_EQ(sample(greedy, 0, kLogits, {}), 0);
  const std::int32_t once[] = {0};
  EXPECT_EQ(sample(greedy, 0, kLogits, once), 0) << "log 8 / 1.4 = 1.49 is more than log 4 = 1.39";
  const std::int32_t twice[] = {0, 0, 0};
  EXPECT_EQ(sample(greedy, 0, kLogits, twice), 0);
  EXPECT_EQ(sample({.temperature = 0, .repetition_penalty = 1.6}, 0, kLogits, once), 1);
  const std::vector<float> negative = {-2, -2.5, -10};
  EXPECT_EQ(sample(greedy, 0, negative, once), 1) << "-2 · 1.4 = -2.8";
  EXPECT_EQ(sample({.temperature = 0, .repetition_penalty = 1e300}, 0, negative, once), 1);
  EXPECT_EQ(sample({.temperature = 0, .repetition_penalty = 1e-300}, 0, kLogits, once), 0);
}

TEST(SamplerTest, WhatMakesNoSenseIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplingOptions& options : {SamplingOptions{.min_p = -0.1},
                                         {.min_p = 1.1},
                                         {.min_p = nan},
                                         {.repetition_penalty = 0},
                                         {.repetition_penalty = -1},
                                         {.repetition_penalty = nan},
                                         {.temperature = -1},
                                         {.top_k = -1},
                                         {.top_p = 0}}) {
    EXPECT_THROW(options.validate(), UsageError);
  }
  const std::vector<float> infinite = {0, std::numeric_limits<float>::infinity()};
  EXPECT_THROW(sample({}, 0, infinite, {}), Error);
}

}  // namespace
}  // namespace warpwright
