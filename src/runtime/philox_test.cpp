#include "runtime/philox.hpp"

#include <gtest/gtest.h>

namespace warpwright {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox({f, f, f, f}, {f, f}), (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformAndNormalHaveTheirMoments) {
  const PhiloxStream stream(1234, 7);
  double sum = 0, sum_normal = 0, sum_square = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    const double z = stream.normal(static_cast<std::uint64_t>(i));
    sum_normal += z;
    sum_square += z * z;
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * 0.2887 / std::sqrt(n));  // five standard errors
  EXPECT_NEAR(sum_normal / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(sum_square / n, 1.0, 5 * std::sqrt(2.0 / n));
}

}  // namespace
}  // namespace warpwright
