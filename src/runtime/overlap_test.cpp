#include "runtime/overlap.hpp"

#include <gtest/gtest.h>

namespace warpwright {
namespace {

TEST(Overlap, LastsAsLongAsItIsThere) {
  const Context context{ContextOptions{}}, other{ContextOptions{}};
  EXPECT_FALSE(Overlap::allowed(context));
  {
    const Overlap overlap(context);
    EXPECT_TRUE(Overlap::allowed(context));
    EXPECT_FALSE(Overlap::allowed(other));
  }
  EXPECT_FALSE(Overlap::allowed(context));
}

}  // namespace
}  // namespace warpwright
