#include "train/stragglers.hpp"

#include <gtest/gtest.h>

namespace warpwright {
namespace {

// The lines of these steps, without the empty ones.
std::vector<std::string> add(Stragglers& stragglers, std::int64_t from, int steps,
                             const std::vector<double>& worked) {
  std::vector<std::string> lines;
  for (int i = 0; i < steps; ++i) {
    const std::string line = stragglers.add(from + i, 2, worked);
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

TEST(Stragglers, ARankThatWorksLongerIsNamedOnce) {
  Stragglers stragglers({"a", "b", "c"});
  const std::vector<double> slow = {1, 1.1, 1.76}, equal = {1, 1.04, 1.05};
  EXPECT_EQ(
      add(stragglers, 1, 100, slow),
      std::vector<std::string>{"rank 2 on c is the slowest: it works during 88 % of a step, and the median "
                               "rank during 55 % (steps 1 to 100)"});
  EXPECT_TRUE(add(stragglers, 101, 300, slow).empty());
  EXPECT_TRUE(add(stragglers, 401, 100, equal).empty());
  EXPECT_TRUE(add(stragglers, 501, 200, slow).empty());
  EXPECT_EQ(add(stragglers, 701, 100, {2, 1, 1}).size(), 1u);
  EXPECT_EQ(add(stragglers, 801, 100, slow).size(), 1u);
}

TEST(Stragglers, TheSummaryIsAboutAllSteps) {
  Stragglers stragglers({"a", "b"});
  add(stragglers, 5, 9, {1, 2});
  EXPECT_EQ(stragglers.summary(), "");  // too few
  add(stragglers, 14, 1, {1, 2});
  EXPECT_EQ(stragglers.summary(),
            "rank 1 on b is the slowest: it works during 100 % of a step, and the median rank during 50 % "
            "(steps 5 to 14)");
  add(stragglers, 15, 300, {1, 1});
  EXPECT_EQ(stragglers.summary(), "");
}

// A GPU's host works during little of a step, so that much longer than the others is still short.
TEST(Stragglers, WhatCostsLittleOfAStepIsNotReported) {
  Stragglers stragglers({"a", "b"});
  EXPECT_TRUE(add(stragglers, 1, 100, {0.02, 0.04}).empty());
  EXPECT_TRUE(add(stragglers, 101, 100, {1, 1.09}).empty());
  EXPECT_EQ(stragglers.summary(), "");
  EXPECT_EQ(add(stragglers, 201, 100, {1, 1.11}).size(), 1u);
}

TEST(Stragglers, ARankAloneIsNone) {
  Stragglers stragglers({"a"});
  EXPECT_TRUE(add(stragglers, 1, 1000, {1}).empty());
  EXPECT_EQ(stragglers.summary(), "");
}

}  // namespace
}  // namespace warpwright
