// Checks the three schedules in whole numbers: every iteration is done once, shares differ by at most one,
// waves.
#include "roofline/schedule.hpp"
#include "roofline/shares.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/error.hpp"

namespace warpwright::roofline {
namespace {

struct Case {
  Work work;
  std::int64_t slots;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::int64_t slots : {1, 2, 3, 82, 108, 132}) {
    for (const std::int64_t tiles : {1, 2, 3, 5, 17, 18, 81, 82, 83, 131, 132, 133, 264, 265, 600}) {
      for (const std::int64_t iterations : {1, 2, 3, 12, 24, 1024})
        list.push_back({{tiles, iterations}, slots});
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto up_to = [&](unsigned most) { return static_cast<std::int64_t>(1 + random() % most); };
    const std::int64_t tiles = up_to(2000), iterations = up_to(300);
    list.push_back({{tiles, iterations}, up_to(150)});
  }
  return list;
}

TEST(Schedule, StreamKDoesEveryIterationOnceInOrder) {
  for (const auto& [work, slots] : cases()) {
    const StreamK s(work, slots);
    ASSERT_EQ(s.whole_tiles() % slots, 0);
    ASSERT_EQ(s.whole_tiles() + s.cut_tiles(), work.tiles);
    std::int64_t next = 0;
    for (std::int64_t cta = 0; cta < s.ctas(); ++cta) {
      const Range r = s.range(cta);
      ASSERT_EQ(r.first, next);
      ASSERT_GE(r.size(), std::min<std::int64_t>(kLeastShare, work.iterations));
      ASSERT_EQ(s.cta_of(r.first), cta);
      ASSERT_EQ(s.cta_of(r.last - 1), cta);
      next = r.last;
    }
    ASSERT_EQ(next, s.cut_tiles() * work.iterations);
  }
}

// Any two CTAs with cut tiles differ by at most one iteration. Cut tiles add at most one tile's iterations to
// a CTA.
TEST(Schedule, StreamKSharesAreEven) {
  for (const auto& [work, slots] : cases()) {
    const StreamK s(work, slots);
    ASSERT_LE(s.most_iterations() - s.fewest_iterations(), 1)
        << work.tiles << " " << work.iterations << " " << slots;
    ASSERT_LE(s.most_iterations() - s.fewest_iterations(), work.iterations);
    for (const std::int64_t fewer : {std::int64_t{1}, (slots + 1) / 2}) {
      const StreamK part(work, slots, fewer);
      for (std::int64_t cta = 0; cta + 1 < part.ctas(); ++cta) {
        ASSERT_LE(std::abs(part.range(cta).size() - part.range(cta + 1).size()), 1);
      }
    }
  }
}

TEST(Schedule, StreamKCountsContributors) {
  for (const auto& [work, slots] : cases()) {
    const StreamK s(work, slots);
    std::vector<int> contributors(static_cast<std::size_t>(s.cut_tiles()));
    for (std::int64_t cta = 0; cta < s.ctas(); ++cta) {
      const Range r = s.range(cta);
      for (std::int64_t tile = r.first / work.iterations; tile * work.iterations < r.last; ++tile) {
        ++contributors[static_cast<std::size_t>(tile)];
      }
    }
    std::int64_t most = 1, shared = 0, partial = 0;
    for (std::size_t tile = 0; tile < contributors.size(); ++tile) {
      ASSERT_EQ(s.contributors(static_cast<std::int64_t>(tile)), contributors[tile]);
      most = std::max<std::int64_t>(most, contributors[tile]);
      shared += contributors[tile] > 1;
      partial += contributors[tile] - 1;
    }
    ASSERT_EQ(s.most_contributors(), most);
    ASSERT_EQ(s.shared_tiles(), shared);
    ASSERT_EQ(s.partial_sums(), partial);
    // With a full wave among the cut tiles, each slot has at least one tile's iterations. So a tile has at
    // most two cuts.
    if (work.tiles >= slots) {
      ASSERT_LE(most, 3);
    }
  }
}

TEST(Schedule, WavesAndUtilization) {
  for (const auto& [work, slots] : cases()) {
    const Split block = split(Schedule::block, work, slots);
    const Split persistent = split(Schedule::persistent, work, slots);
    const Split stream = split(Schedule::stream_k, work, slots);
    const std::int64_t waves = (work.tiles + slots - 1) / slots;
    ASSERT_EQ(block.waves, waves);
    ASSERT_EQ(block.ctas, work.tiles);
    ASSERT_EQ(persistent.waves, waves);
    ASSERT_EQ(persistent.ctas, std::min(work.tiles, slots));
    const double full = static_cast<double>(work.tiles) / static_cast<double>(waves * slots);
    ASSERT_DOUBLE_EQ(block.utilization, full);
    ASSERT_DOUBLE_EQ(persistent.utilization, full);
    ASSERT_LE(stream.most_iterations, persistent.most_iterations);
    ASSERT_GE(stream.utilization, full);
    // No slot does more than one iteration above the average, unless the work is so small that the least
    // share decides.
    const double total = static_cast<double>(work.tiles * work.iterations);
    ASSERT_LE(static_cast<double>(stream.most_iterations),
              std::max(total / static_cast<double>(slots) + 1, 2.0 * kLeastShare));
    ASSERT_LE(stream.utilization, 1);
  }
}

TEST(Schedule, WholeWavesAreNotCut) {
  const Split s = split(Schedule::stream_k, {264, 12}, 132);
  EXPECT_EQ(s.shared_tiles, 0);
  EXPECT_EQ(s.partial_sums, 0);
  EXPECT_EQ(s.most_iterations, 24);
  EXPECT_EQ(s.utilization, 1);
}

TEST(Schedule, NothingToDo) {
  for (const Schedule schedule : kSchedules) {
    for (const Work& work : {Work{0, 5}, Work{5, 0}}) {
      const Split s = split(schedule, work, 132);
      EXPECT_EQ(s.most_iterations, 0);
      EXPECT_EQ(s.waves, 0);
    }
    EXPECT_EQ(schedule_named(name_of(schedule)), schedule);
  }
  EXPECT_THROW(schedule_named("streamk"), UsageError);
}

}  // namespace
}  // namespace warpwright::roofline
