#include "runtime/stream.hpp"

#include <gtest/gtest.h>

#include "runtime/context.hpp"
#include "runtime/device.hpp"
#include "runtime/memory.hpp"

namespace warpwright {
namespace {

// An event can be recorded only in a stream of its own GPU.
TEST(Stream, OnCudaObjectsOfOtherDevicesLeaveTheCurrentOne) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "needs two NVIDIA GPUs";
  const Device first{DeviceKind::cuda, 0}, second{DeviceKind::cuda, 1};
  Context context(ContextOptions{}, second);
  const Stream stream(first);
  const Buffer elsewhere(1 << 20, first, "test"), here(1 << 20, second, "test");
  EXPECT_GT(available_memory(first), 0u);
  Event of_first(first), of_second(second);
  EXPECT_NO_THROW(of_first.record(stream));
  EXPECT_NO_THROW(of_second.record(context.stream()));
  const Tensor zeros(here.data(), DType::f32, {1 << 18}, second);
  const Graph graph(context.stream(), [&] { clear(zeros, context.stream()); });
  EXPECT_NO_THROW(graph.launch(context.stream()));
  EXPECT_NO_THROW(context.synchronize());
}

}  // namespace
}  // namespace warpwright
