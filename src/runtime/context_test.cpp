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

}  // namespace
}  // namespace warpwright
