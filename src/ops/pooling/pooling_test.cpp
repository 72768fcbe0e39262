#include "ops/pooling/pooling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/element.hpp"
#include "ops/pooling/cases.hpp"
#include "ops/testing/repeated.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

constexpr Pooling kKinds[] = {Pooling::mean, Pooling::cls, Pooling::max, Pooling::mean_sqrt};

class Forward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : taken(pooling::test_cases())) {
    std::int32_t longest = 1;
    for (const std::int32_t length : c.lengths) longest = std::max(longest, length);
    for (const DType dtype : dtypes_for(pooling_forward_op(), GetParam())) {
      for (const Pooling kind : kKinds) {
        for (const bool normalize : {false, true}) {
          for (const DType out : dtype == DType::f32 ? std::vector{dtype} : std::vector{dtype, DType::f32}) {
            Fixture fixture(static_cast<std::uint64_t>(c.C));
            const auto args = pooling::make_forward(c, dtype, out, kind, normalize, fixture);
            // The mean of L rows is √L times smaller than a row, and so is the error that its sum may have.
            const auto reduction = [&](std::string_view) {
              return static_cast<double>(longest) + static_cast<double>(c.C);
            };
            const auto reason = check_variant(pooling_forward_op(), GetParam(), fixture, args, reduction);
            reason.empty() ? void(++checked) : void(refusal = reason);
          }
        }
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, ANaNStaysInItsColumnAndSequence) {
  const auto& variant = find_variant(pooling_forward_op(), GetParam());
  for (const Pooling kind : kKinds) {
    for (const std::int32_t row : {0, 1, 5}) {
      Fixture fixture(1);
      const auto args = pooling::make_forward({{6, 4}, 40}, DType::f32, DType::f32, kind, false, fixture);
      if (auto reason = variant.refuse(pooling_forward_op().problem(args), device_for(variant.name));
          !reason.empty()) {
        GTEST_SKIP() << reason;
      }
      store_element(args.x, row * 40 + 7, std::numeric_limits<double>::quiet_NaN());
      run_variant(pooling_forward_op(), variant, args, 1);
      const auto out = elements_of(args.out);
      const bool seen = kind != Pooling::cls || row == 0;
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), seen && i == 7) << i;
    }
  }
}

TEST_P(Forward, WithoutBoundsEveryRowIsASequence) {
  const auto& variant = find_variant(pooling_forward_op(), GetParam());
  Fixture fixture(2);
  auto args = pooling::make_forward({{1, 1, 1}, 50}, DType::f32, DType::f32, Pooling::cls, true, fixture);
  if (auto reason = variant.refuse(pooling_forward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(pooling_forward_op(), variant, args, 1);
  const auto with = elements_of(args.out);
  args.cu_seqlens = {};
  args.out = fixture.output(DType::f32, {3, 50});
  run_variant(pooling_forward_op(), variant, args, 1);
  EXPECT_EQ(elements_of(args.out), with);
}

INSTANTIATE_TEST_SUITE_P(Pooling, Forward, ::testing::ValuesIn(variant_names(pooling_forward_op())),
                         test_name);

class Huge : public testing::VariantTest {};  // for the variants of a GPU

TEST_P(Huge, GivesEverySequenceItsBits) {
  for (const Pooling kind : {Pooling::mean, Pooling::max}) {
    Fixture fixture(5);
    const auto args = pooling::make_forward({{150, 97, 66, 31, 140, 128, 5}, 768}, DType::bf16, DType::f32,
                                            kind, true, fixture);
    const auto reason = check_repeated(pooling_forward_op(), GetParam(), fixture, args,
                                       [](std::string_view) { return 150.0 + 768; },
                                       {.beyond = "x", .bounds = {"cu_seqlens"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Pooling, Huge, ::testing::ValuesIn(gpu_variant_names(pooling_forward_op())),
                         test_name);

TEST(Pooling, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args =
      pooling::make_forward({{3, 2}, 8}, DType::bf16, DType::f32, Pooling::mean, false, fixture);
  const auto expect_refused = [&](auto&& change) {
    PoolingForward wrong = args;
    change(wrong);
    EXPECT_THROW(pooling_forward(context, wrong), Error);
  };
  expect_refused([&](auto& a) { a.out = fixture.output(DType::f32, {2, 7}); });
  expect_refused([&](auto& a) { a.out = fixture.output(DType::f64, {2, 8}); });
  expect_refused([&](auto& a) { a.out = fixture.output(DType::f32, {3, 8}); });
  expect_refused([&](auto& a) { a.cu_seqlens = fixture.integers({0, 3, 6}); });
  expect_refused([&](auto& a) { a.cu_seqlens = fixture.integers({0, 4, 3}); });
  expect_refused([&](auto& a) { a.cu_seqlens = fixture.integers({1, 3, 5}); });
}

}  // namespace
}  // namespace warpwright::ops
