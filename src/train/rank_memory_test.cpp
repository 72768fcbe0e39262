// Tests what ranks hold, which devices they share, and which sharding the planner chooses.
#include "train/rank_memory.hpp"

#include <algorithm>

#include "train/trainer_fixture.hpp"

namespace warpwright {
namespace {

// Ranks of one machine that all say the same.
class Alike final : public Comm {
 public:
  explicit Alike(int ranks) : Comm(0, ranks, nullptr) {}
  void all_to_all(const std::vector<Outgoing>&, const std::vector<Incoming>&, const Stream&) const override {}
  void reduce(const std::vector<Summed>&, const Stream&) const override {}

 private:
  std::vector<std::string> all_gather_piece(std::string_view mine) const override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), std::string(mine));
  }
  std::vector<std::string> gather_piece(std::string_view mine) const override {
    return all_gather_piece(mine);
  }
};

class RankMemoryTest : public TrainerTest {
 protected:
  TrainOptions twelve_slices() const {
    TrainOptions o = options("planned");
    o.step.model = decoder(2, 128, 3);
    o.step.slices = 12;
    o.planner_shards = true;
    return o;
  }
  std::size_t bytes(const TrainOptions& o, int rank, int ranks) {
    return planned_rank_memory(context_, o, *imagined_rank(rank, ranks)).total();
  }

  Context context_{ContextOptions{}};
};

TEST_F(RankMemoryTest, TheRankWithMostIsFoundWithoutPlanningAll) {
  TrainOptions o = twelve_slices();
  for (const int ranks : {2, 3, 4, 6, 12}) {
    for (const Sharding sharding : kShardings) {
      for (const Reduce reduce : kReduces) {
        o.step.sharding = sharding;
        o.step.reduce = reduce;
        std::size_t most = 0;
        for (int r = 0; r < ranks; ++r) most = std::max(most, bytes(o, r, ranks));
        EXPECT_EQ(bytes(o, rank_with_most(o.step, ranks), ranks), most)
            << ranks << " " << name_of(sharding) << " " << name_of(reduce);
      }
    }
  }
}

// It adds up in the gradients' own memory.
TEST_F(RankMemoryTest, TheLibrarysSumNeedsNoRoomForOtherRanks) {
  TrainOptions o = twelve_slices();
  for (const int ranks : {2, 3, 4}) {
    for (const Sharding sharding : kShardings) {
      o.step.sharding = sharding;
      o.step.reduce = Reduce::tree;
      const std::size_t of_tree = bytes(o, 0, ranks);
      o.step.reduce = Reduce::ring;
      EXPECT_LT(bytes(o, 0, ranks), of_tree) << ranks << " " << name_of(sharding);
    }
  }
}

TEST_F(RankMemoryTest, ThePlannerTakesTheFirstShardingThatFits) {
  constexpr int kRanks = 4;
  TrainOptions o = twelve_slices();
  const auto needed = [&](const TrainOptions& tried) { return bytes(tried, 0, kRanks); };
  const auto choice = [&](std::size_t available) {
    return first_sharding(o, kRanks, [&](const TrainOptions& tried) { return needed(tried) <= available; });
  };
  for (const Sharding sharding : {Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
    o.step.sharding = sharding;
    EXPECT_EQ(choice(needed(o)), sharding);
  }
  EXPECT_EQ(choice(0), Sharding::parameters);
  o.sample_every = 1;  // needs whole parameters
  EXPECT_EQ(choice(0), Sharding::gradients);
  o.planner_shards = false;
  o.step.sharding = Sharding::none;
  EXPECT_EQ(choice(needed(o)), Sharding::none);
}

// A layer of 128 channels has 8 groups of 128 · 128 parameters, 3 of qkv, 1 of attproj and 4 of fc, and
// fcproj, whose 128 rows are one group of 4 times the size. Biases and norms are small.
TEST_F(RankMemoryTest, AGroupOfRowsIsTheLeastThatARankOwns) {
  const TrainOptions o = twelve_slices();
  EXPECT_NEAR(largest_shard(o.step, 1), 1, 1e-9);
  EXPECT_NEAR(largest_shard(o.step, 12), 4, 0.2);
  EXPECT_LT(largest_shard(o.step, 2), 1.4);
}

// With Muon a rank gets whole tensors: here each of 12 ranks one of the 4 in 3 layers. A matrix of 128 rows
// and columns counts as 3, so a layer's tensors count as 9 (qkv), 3 (attproj), 9 (fc) and 9 (fcproj).
TEST_F(RankMemoryTest, MuonsUpdateTakesAsLongAsThatOfTheBusiestRank) {
  TrainOptions o = twelve_slices();
  EXPECT_EQ(largest_update(o.step, 12), 1);
  o.step.optimizer = Optimizer::muon;
  EXPECT_NEAR(largest_update(o.step, 1), 1, 1e-9);
  EXPECT_LT(largest_update(o.step, 2), 1.4);
  EXPECT_NEAR(largest_update(o.step, 12), 12 * 9.0 / (3 * 30), 1e-9);
}

// The hash of a run's kernels must not depend on what the planner has tried.
TEST_F(RankMemoryTest, APlanThatIsTriedLeavesNoTrace) {
  TrainOptions o = twelve_slices();
  o.sample_every = 1;
  const std::uint64_t before = context_.plan_hash();
  bytes(o, 0, 4);
  EXPECT_EQ(context_.plan_hash(), before);
}

TEST_F(RankMemoryTest, RanksOnCpusShareTheirMachine) {
  const Alike comm(3);
  const RankDevices devices(Device{}, comm);
  const RankMemory mine = planned_rank_memory(context_, twelve_slices(), comm);
  const RankDevices::Use use = devices.tightest(memory_of_ranks(comm, mine));
  EXPECT_EQ(use.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(use.needed, 3 * mine.total());
  EXPECT_GT(use.available, 0u);
}

TEST_F(RankMemoryTest, RanksOnGpusHaveADeviceEachAndRoomForNccl) {
  const RankMemory one = rank_memory({}, {}, {DeviceKind::cuda, 0}, 1);
  EXPECT_EQ(one.total(), 0u);
  EXPECT_GT(rank_memory({}, {}, {DeviceKind::cuda, 0}, 2).nccl, 0u);
  EXPECT_EQ(rank_memory({}, {}, Device{}, 2).nccl, 0u);
}

}  // namespace
}  // namespace warpwright
