#include <gtest/gtest.h>

#include "ops/gradient_sum/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

double one_addition(std::string_view) {
  return 1;
}

std::vector<std::vector<double>> values_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<double>> values;
  for (const Tensor& t : tensors) values.push_back(elements_of(t));
  return values;
}

class Variants : public testing::VariantTest {};

TEST_P(Variants, MatchTheReference) {
  Tally tally;
  for (const auto& c : taken(gradient_sum_kernels::test_cases())) {
    Fixture fixture(c.sizes.size());
    const auto args = gradient_sum_kernels::make(c, DType::f32, fixture);
    tally.add(check_variant(gradient_sum_op(), GetParam(), fixture, args, one_addition));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Variants, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = gradient_sum_kernels::make({{100003, 7, 40000}}, DType::f32, fixture);
  const auto reason = check_repeats(gradient_sum_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

// fp32 addition rounds once, and does not depend on the order of two terms.
TEST_P(Variants, GiveTheRoundedSumOfEachPair) {
  if (const std::string missing = missing_for(GetParam()); !missing.empty()) GTEST_SKIP() << missing;
  Fixture fixture(2);
  const auto args = gradient_sum_kernels::make({{70, 20000}}, DType::f32, fixture);
  const auto before = values_of(args.firsts), addends = values_of(args.addends);
  EXPECT_EQ(check_variant(gradient_sum_op(), GetParam(), fixture, args, one_addition), "");
  EXPECT_EQ(values_of(args.addends), addends);
  const auto after = values_of(args.sums);
  for (std::size_t t = 0; t < before.size(); ++t) {
    for (std::size_t i = 0; i < before[t].size(); ++i) {
      const auto a = static_cast<float>(before[t][i]), b = static_cast<float>(addends[t][i]);
      ASSERT_EQ(static_cast<float>(after[t][i]), a + b) << t << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GradientSum, Variants, ::testing::ValuesIn(variant_names(gradient_sum_op())),
                         test_name);

class Huge : public testing::VariantTest {};  // GPU variants

TEST_P(Huge, GivesEveryElementItsBits) {
  Fixture fixture(7);
  const auto args = gradient_sum_kernels::make({{200000, 5}}, DType::f32, fixture);
  const auto reason =
      check_repeated(gradient_sum_op(), GetParam(), fixture, args, one_addition, {.beyond = "sum"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(GradientSum, Huge, ::testing::ValuesIn(gpu_variant_names(gradient_sum_op())),
                         test_name);

TEST(GradientSum, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = gradient_sum_kernels::make({{40, 3}}, DType::f32, fixture);
  auto wrong = args;
  wrong.addends.pop_back();
  EXPECT_THROW(gradient_sum(context, wrong), Error);
  wrong = args;
  wrong.addends[1] = fixture.random(DType::f32, {4});
  EXPECT_THROW(gradient_sum(context, wrong), Error);
  wrong = args;
  wrong.sums[1] = wrong.firsts[1] = wrong.addends[1] = fixture.random(DType::f64, {3});
  EXPECT_THROW(gradient_sum(context, wrong), Error);
  wrong = args;
  wrong.firsts.pop_back();
  EXPECT_THROW(gradient_sum(context, wrong), Error);
  wrong.firsts.push_back(fixture.random(DType::f32, {4}));
  EXPECT_THROW(gradient_sum(context, wrong), Error);
  wrong = args;
  wrong.sums[0] = wrong.firsts[0] = wrong.addends[0] = fixture.random(DType::bf16, {40});
  EXPECT_THROW(gradient_sum(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
