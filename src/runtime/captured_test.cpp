#include "runtime/captured.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/host_view.hpp"
#include "runtime/memory.hpp"

namespace warpwright {
namespace {

TEST(Captured, RunsEachTimeOnACpu) {
  Context context{ContextOptions{}};
  EXPECT_FALSE(Captured::possible(context));
  Captured captured;
  int runs = 0;
  for (int i = 1; i <= 4; ++i) {
    captured.run(context, [&] { ++runs; });
    EXPECT_EQ(runs, i);
  }
}

TEST(Captured, PassesAnExceptionOn) {
  Context context{ContextOptions{}};
  Captured captured;
  EXPECT_THROW(captured.run(context, [] { throw std::runtime_error("in the work"); }), std::runtime_error);
  int runs = 0;
  captured.run(context, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

// Runs as it is, is captured, replayed, and captured anew after the scratch has moved; and a watcher sees
// every run.
TEST(Captured, OnCudaReplaysUntilTheScratchMoves) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const Device gpu{DeviceKind::cuda, 0};
  const Stream own(gpu);
  HeapAllocator heap(gpu);
  const Tensor tensor = heap.allocate("tensor", DType::i32, {1}, Category::batch);
  for (const bool on_own : {false, true}) {
    Context context(ContextOptions{}, gpu);
    Captured captured = on_own ? Captured(own) : Captured();
    const CudaStream callers = context.stream().get();
    int runs = 0;
    const auto run = [&] {
      write_on_host(tensor, context.stream(), [](const Tensor& host) { host.as<std::int32_t>()[0] = 7; });
      captured.run(context, [&] {
        clear(tensor, context.stream());
        ++runs;
      });
      EXPECT_EQ(context.stream().get(), callers);
      EXPECT_EQ(downloaded(tensor, context.stream()).tensor().as<std::int32_t>()[0], 0);
      return runs;
    };
    EXPECT_EQ(run(), 1);
    EXPECT_EQ(run(), 2);
    EXPECT_EQ(run(), 2);
    context.reserve_scratch(1 << 20);
    EXPECT_EQ(run(), 3);
    EXPECT_EQ(run(), 3);
    {
      const Timing timing(context, [](const Context::CallRecord&) {});
      EXPECT_EQ(run(), 4);
    }
    EXPECT_EQ(run(), 4);
  }
}

// A capture that fails leaves the Context its stream.
TEST(Captured, OnCudaAnExceptionLeavesTheCallersStream) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const Device gpu{DeviceKind::cuda, 0};
  const Stream own(gpu);
  Context context(ContextOptions{}, gpu);
  const CudaStream callers = context.stream().get();
  Captured captured(own);
  captured.run(context, [] {});
  EXPECT_THROW(captured.run(context, [] { throw std::runtime_error("in the work"); }), std::runtime_error);
  EXPECT_EQ(context.stream().get(), callers);
}

}  // namespace
}  // namespace warpwright
