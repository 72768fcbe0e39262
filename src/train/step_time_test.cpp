// Compares predicted times with some worked out by hand.
#include "train/step_time.hpp"

#include <gtest/gtest.h>

namespace warpwright {
namespace {

// 4 layers of 8 bytes, and 4 bytes outside of them; 4 ranks on 2 nodes. A rank sends a quarter of what is
// exchanged within its node, at 2 bytes a second, and a half to the other one, at 1 byte a second.
StepLoad load_of(Sharding sharding) {
  return {.sharding = sharding,
          .ranks = 4,
          .nodes = 2,
          .slices = 3,
          .sums = 2,
          .layers = 4,
          .forward = 8,
          .backward = 12,
          .update = 16,
          .addition = 4,
          .layer_bytes = 8,
          .other_bytes = 4,
          .weight_share = 0.5,
          .link = 2,
          .network = 1,
          .overlapped = 1};
}

TEST(StepTime, TheSlowerOfTwoKindsOfLinksCounts) {
  StepLoad load = load_of(Sharding::none);
  EXPECT_DOUBLE_EQ(exchange_seconds(load, 8), 4);  // max(2 / 2, 4 / 1)
  load.network = 8;
  EXPECT_DOUBLE_EQ(exchange_seconds(load, 8), 1);  // max(2 / 2, 4 / 8)
  load.largest_shard = 1.5;
  EXPECT_DOUBLE_EQ(exchange_seconds(load, 8), 1.5);
  load.largest_shard = 1;
  load.nodes = 1;
  load.network = 0;                                // no one uses it
  EXPECT_DOUBLE_EQ(exchange_seconds(load, 8), 3);  // 6 / 2
  load.ranks = 1;
  load.link = 0;
  EXPECT_DOUBLE_EQ(exchange_seconds(load, 8), 0);
}

TEST(StepTime, ALayersExchangeRunsDuringTheNextOne) {
  StepLoad load = load_of(Sharding::none);
  // A layer works for 3 s and its exchange takes 1 s: only the last one is exposed.
  EXPECT_DOUBLE_EQ(exposed_seconds(load, 12, 2), 1);
  // The exchange takes 4 s: 3 + 3 · 4 + 4 = 19 s instead of 12.
  EXPECT_DOUBLE_EQ(exposed_seconds(load, 12, 8), 7);
  // 3 s of each exchange are hidden: 3 + 3 · 3 + 3 = 15 s, and 4 · 1 s come on top.
  load.overlapped = 0.75;
  EXPECT_DOUBLE_EQ(exposed_seconds(load, 12, 8), 7);
  // Nothing is: all four exchanges.
  load.overlapped = 0;
  EXPECT_DOUBLE_EQ(exposed_seconds(load, 12, 8), 16);
}

TEST(StepTime, TheOthersTravelDuringTheFirstLayersLastProducts) {
  StepLoad load = load_of(Sharding::gradients);
  load.network = 4;
  load.link = 8;
  // A layer's exchange takes 1 s of 3, and that of the others ½ s, which is hidden. Exposed are 1 s in each
  // of 3 slices, and the parameters, half the bytes, of one layer and of the others.
  EXPECT_DOUBLE_EQ(predicted_step_time(load).exchange, 3 * 1 + 0.5 + 0.25);
  load.other_bytes = 8;  // 1 s, of which a quarter of a layer's backward hides ¾
  EXPECT_DOUBLE_EQ(predicted_step_time(load).exchange, 3 * (1 + 0.25) + 0.5 + 0.5);
}

TEST(StepTime, NothingIsHiddenWithoutOverlap) {
  StepLoad load = load_of(Sharding::none);
  load.overlapped = 0;
  // Gradients and the others' three sums: 4 · 12 + 6 s.
  EXPECT_DOUBLE_EQ(predicted_step_time(load).exchange, 48 + 6);
}

TEST(StepTime, OneRankExchangesNothing) {
  StepLoad load = load_of(Sharding::none);
  load.ranks = load.nodes = 1;
  load.sums = 1;
  const StepTime time = predicted_step_time(load);
  // 3 slices of 20 s, the update, and 2 additions.
  EXPECT_DOUBLE_EQ(time.compute, 60 + 16 + 2 * 4);
  EXPECT_DOUBLE_EQ(time.exchange, 0);
  EXPECT_DOUBLE_EQ(time.sent, 0);
}

TEST(StepTime, NoneExchangesGradientsTwice) {
  const StepTime time = predicted_step_time(load_of(Sharding::none));
  // One whole addition, and 7 of a quarter; the update of everything.
  EXPECT_DOUBLE_EQ(time.compute, 60 + 16 + 4 + 7);
  // (d + 1)·G, of which a rank keeps a quarter: 3 · 36 · ¾.
  EXPECT_DOUBLE_EQ(time.sent, 81);
  // A layer's exchange takes 3 · 4 s: 3 + 3 · 12 + 12 − 12 = 39 s, and that of the others 3 · 2 s.
  EXPECT_DOUBLE_EQ(time.exchange, 39 + 6);
}

TEST(StepTime, OptimizerSendsUpdatedParameters) {
  const StepTime time = predicted_step_time(load_of(Sharding::optimizer));
  EXPECT_DOUBLE_EQ(time.compute, 60 + 4 + 4 + 7);
  EXPECT_DOUBLE_EQ(time.sent, 2.5 * 36 * 0.75);  // (d + ½)·G
  // Gradients: 8 s a layer: 3 + 3 · 8 + 8 − 12 = 23, others 2 · 2. Parameters: 2 s a layer during 4 + 8 s of
  // update and forward: the last one is exposed. Others: 1 s.
  EXPECT_DOUBLE_EQ(time.exchange, 23 + 4 + 2 + 1);
}

TEST(StepTime, GradientsAreExchangedInEverySlice) {
  const StepTime time = predicted_step_time(load_of(Sharding::gradients));
  EXPECT_DOUBLE_EQ(time.compute, 60 + 4 + 4 * 11.0 / 4);  // the shard's 11 additions of 12 slices
  EXPECT_DOUBLE_EQ(time.sent, 3.5 * 36 * 0.75);           // (s + ½)·G
  EXPECT_DOUBLE_EQ(time.exchange, 3 * 7 + 3 * 2 + 2 + 1);
}

TEST(StepTime, ParametersTravelForEveryUse) {
  const StepTime time = predicted_step_time(load_of(Sharding::parameters));
  // 2·s·G for layers. The embeddings' gradients travel s times, and they themselves once.
  EXPECT_DOUBLE_EQ(time.sent, (6 * 32 + 3.5 * 4) * 0.75);
  // Forward: 2 s a layer during 2 s: 2 exposed. Backward: 6 s during 3 s: 3 + 3 · 6 + 6 − 12 = 15.
  EXPECT_DOUBLE_EQ(time.exchange, 3 * 2 + 3 * 15 + 3 * 2 + 1);
}

}  // namespace
}  // namespace warpwright
