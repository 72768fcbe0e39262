#include "runtime/memory.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

TensorUse read(const Tensor& t) {
  return {"in", t, Access::read};
}
TensorUse write(const Tensor& t) {
  return {"out", t, Access::write};
}

TEST(Recorder, DisjointLifetimesShareMemoryAndOverlappingOnesDoNot) {
  Recorder recorder;
  const Tensor a = recorder.allocate("a", DType::f32, {1000}, Category::activations);
  const Tensor b = recorder.allocate("b", DType::f32, {1000}, Category::activations);
  const Tensor c = recorder.allocate("c", DType::f32, {1000}, Category::activations);
  const Tensor w = recorder.allocate("w", DType::f32, {10}, Category::parameters);
  recorder.call("op1", {read(w), write(a)}, 100);
  recorder.call("op2", {read(a), write(b)}, 300);
  recorder.call("op3", {read(b), write(c)}, 0);
  const MemoryPlan plan = recorder.plan();
  EXPECT_EQ(plan.workspace_bytes, 512u);
  EXPECT_EQ(plan.arena_bytes[static_cast<int>(Category::activations)], 2 * 4096u);
  EXPECT_EQ(plan.blocks[0].offset, plan.blocks[2].offset);
  EXPECT_NE(plan.blocks[0].offset, plan.blocks[1].offset);
  EXPECT_NE(plan.details().find("shares"), std::string::npos);
  Recorder long_names;
  long_names.allocate(std::string(40, 'n'), DType::f32, {10}, Category::parameters);
  EXPECT_NE(long_names.plan().details().find(std::string(40, 'n') + "  parameters"), std::string::npos);

  Arenas arenas(plan, Device{});
  const Tensor real = arenas.allocate("b", DType::f32, {1000}, Category::activations);
  EXPECT_EQ(arenas.name_of(real.as<float>() + 5, 1), "b");
  EXPECT_EQ(arenas.name_of(real.as<float>() + 5, 0), "");  // not alive yet
  EXPECT_THROW(arenas.allocate("b", DType::f32, {999}, Category::activations), Error);
  EXPECT_THROW(arenas.allocate("d", DType::f32, {1000}, Category::activations), Error);
}

TEST(Recorder, ViewsCountAsTheirBlock) {
  Recorder recorder;
  const Tensor qkv = recorder.allocate("qkv", DType::f32, {8, 3, 16}, Category::activations);
  recorder.call("matmul", {write(qkv)}, 0);
  recorder.call("other", {}, 0);
  recorder.call("attention", {read(qkv.select(1, 2))}, 0);
  EXPECT_EQ(recorder.plan().blocks[0].last_call, 2);
}

TEST(Recorder, ReadingWhatNothingWroteIsAnError) {
  Recorder recorder;
  const Tensor a = recorder.allocate("a", DType::f32, {4}, Category::activations);
  EXPECT_THROW(recorder.call("gelu", {read(a)}, 0), Error);
}

TEST(Buffer, ImpossibleSizeIsOneError) {
  const std::string message = message_of([] { Buffer(std::size_t{1} << 60, Device{}, "test"); });
  EXPECT_EQ(message.find("test: cannot allocate 1152921.5 TB of memory ("), 0u) << message;
}

}  // namespace
}  // namespace warpwright
