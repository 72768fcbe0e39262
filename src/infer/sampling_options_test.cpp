#include "infer/sampling_options.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "core/error.hpp"

namespace warpwright {
namespace {

TEST(SamplingOptionsTest, WhatMakesNoSenseIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplingOptions& options : {SamplingOptions{.min_p = -0.1},
                                         {.min_p = 1.1},
                                         {.min_p = nan},
                                         {.repetition_penalty = 0},
                                         {.repetition_penalty = -1},
                                         {.repetition_penalty = nan},
                                         {.temperature = -1},
                                         {.top_k = -1},
                                         {.top_p = 0},
                                         {.temperature = 0, .top_k = 3},
                                         {.temperature = 0, .top_p = 0.5},
                                         {.temperature = 0, .min_p = 0.5}}) {
    EXPECT_THROW(options.validate(), UsageError);
  }
}

TEST(SamplingOptionsTest, EveryPositionOfEverySeedHasBitsOfItsOwn) {
  std::set<std::uint64_t> bits;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (std::uint64_t position = 0; position < 50; ++position) {
      bits.insert(SamplingOptions{.seed = seed}.random_bits(position));
    }
  }
  EXPECT_EQ(bits.size(), 2500u);
}

}  // namespace
}  // namespace warpwright
