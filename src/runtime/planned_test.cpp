#include "runtime/planned.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "core/error.hpp"

namespace warpwright {
namespace {

struct Pair {
  Tensor in, out;
};

Pair allocate_pair(Allocator& allocator) {
  return {allocator.allocate("in", DType::f32, {1000}, Category::batch),
          allocator.allocate("out", DType::f32, {1000}, Category::activations)};
}

// An operation that asks for this much scratch.
void note(Context& context, const Pair& pair, std::size_t workspace) {
  ASSERT_NE(context.recorder(), nullptr);
  context.recorder()->call("op", {{"in", pair.in, Access::read}, {"out", pair.out, Access::write}},
                           workspace);
}

TEST(Planned, TakesWhatItPlanned) {
  Context context{ContextOptions{}};
  Planned<Pair> pair(context, allocate_pair, [&](const Pair& p) { note(context, p, 300); });
  EXPECT_EQ(context.recorder(), nullptr);
  EXPECT_EQ(pair.plan().total_bytes(), 2 * 4096u + 512u);
  EXPECT_FALSE(pair.tensors().in);
  pair.reserve_scratch_for(context, [&](const Pair& p) { note(context, p, 700); });
  EXPECT_EQ(pair.plan().workspace_bytes, 768u);
  pair.reserve_scratch_for(context, [&](const Pair& p) { note(context, p, 1); });
  EXPECT_EQ(pair.plan().workspace_bytes, 768u);
  pair.take(context);
  EXPECT_EQ(pair.arenas().allocated_bytes() + context.scratch_bytes(), pair.plan().total_bytes());
  EXPECT_EQ(pair.arenas().name_of(pair.tensors().out.as<float>() + 999, 0), "out");
}

TEST(Planned, TensorsWithoutWork) {
  Planned<Pair> pair(allocate_pair);
  EXPECT_EQ(pair.plan().workspace_bytes, 0u);
  pair.take(Device{});
  EXPECT_EQ(pair.arenas().allocated_bytes(), pair.plan().total_bytes());
  EXPECT_TRUE(pair.tensors().in && pair.tensors().out);
}

TEST(Planned, AnExceptionLeavesTheContextUsable) {
  Context context{ContextOptions{}};
  const auto fails = [&](const Pair&) {
    EXPECT_NE(context.recorder(), nullptr);
    throw std::runtime_error("in the work");
  };
  EXPECT_THROW(Planned<Pair>(context, allocate_pair, fails), std::runtime_error);
  EXPECT_EQ(context.recorder(), nullptr);
  Planned<Pair> pair(context, allocate_pair, [&](const Pair& p) { note(context, p, 300); });
  EXPECT_THROW(pair.reserve_scratch_for(context, fails), std::runtime_error);
  EXPECT_EQ(context.recorder(), nullptr);
  EXPECT_EQ(pair.plan().workspace_bytes, 512u);
}

TEST(Recording, GivesBackTheRecorderBeforeIt) {
  Context context{ContextOptions{}};
  Recorder outer, inner;
  const Recording recording(context, outer);
  {
    const Recording nested(context, inner);
    EXPECT_EQ(context.recorder(), &inner);
  }
  EXPECT_EQ(context.recorder(), &outer);
}

}  // namespace
}  // namespace warpwright
