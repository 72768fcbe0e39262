#include "runtime/context.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace warpwright {
namespace {

TEST(Context, AnExceptionEndsInspectorAndTimer) {
  Context context{ContextOptions{}};
  const auto fail = [&] {
    const Inspecting inspecting(context, [](std::string_view, const std::vector<TensorUse>&) {});
    const Timing timing(context, [](const Context::CallRecord&) {});
    EXPECT_TRUE(context.inspector() && context.timer());
    throw std::runtime_error("in the work");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_FALSE(context.inspector() || context.timer());
}

TEST(Context, GivesBackTheInspectorBefore) {
  Context context{ContextOptions{}};
  int outer = 0, inner = 0;
  const Inspecting outside(context, [&](std::string_view, const std::vector<TensorUse>&) { ++outer; });
  {
    const Inspecting inside(context, [&](std::string_view, const std::vector<TensorUse>&) { ++inner; });
    context.inspector()("op", {});
  }
  context.inspector()("op", {});
  EXPECT_EQ(outer, 1);
  EXPECT_EQ(inner, 1);
}

// A kernel's state is released only after all work that may use it.
TEST(Context, OnCudaWaitsBeforeItReleasesWhatKernelsKeep) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const Device gpu{DeviceKind::cuda, 0};
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const Buffer zeros(kBytes, gpu, "zeros"), host = Buffer::pinned(kBytes, "host");
  const std::byte* last = host.data() + kBytes - 1;
  host.data()[kBytes - 1] = std::byte{1};
  struct State {
    ~State() { *seen = *last; }
    const std::byte* last;
    std::byte* seen;
  };
  std::byte seen{2};
  {
    Context context(ContextOptions{}, gpu);
    static constexpr char kOwner = 0;
    context.kept(&kOwner) = std::shared_ptr<State>(new State{last, &seen});
    const Shape shape{static_cast<std::int64_t>(kBytes / sizeof(float))};
    copy(Tensor(host.data(), DType::f32, shape), Tensor(zeros.data(), DType::f32, shape, gpu),
         context.stream());
  }
  EXPECT_EQ(seen, std::byte{0});
}

}  // namespace
}  // namespace warpwright
