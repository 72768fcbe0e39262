#include <gtest/gtest.h>

#include "ops/bias_residual_layernorm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's
using bias_residual_layernorm::Form;

class Forward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  const auto check = [&](const layernorm::Case& c, DType dtype, const Form& form) {
    Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
    const auto args = bias_residual_layernorm::make_forward(c, dtype, form, fixture);
    const auto reduction = [&](std::string_view) { return (1 + c.mean * c.mean) * static_cast<double>(c.C); };
    const auto reason =
        check_variant(bias_residual_layernorm_forward_op(), GetParam(), fixture, args, reduction);
    reason.empty() ? void(++checked) : void(refusal = reason);
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& c : taken(bias_residual_layernorm::test_cases())) check(c, dtype, {});
    for (const auto& c : taken(layernorm::few_cases())) {
      check(c, dtype, {true, true, false, true});
      check(c, dtype, {false, false, false, false});
      check(c, dtype, {true, true, true, false});
      check(c, dtype, {true, false, true, false});
      if (size_of(dtype) != 2) continue;
      check(c, dtype, {true, true, false, true, true});
      check(c, dtype, {true, false, false, true, true});
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Sum over x and out over residual, as a model without a buffer to spare has them.
TEST_P(Forward, WorksInPlace) {
  const auto& op = bias_residual_layernorm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  std::string refusal;
  int checked = 0;
  for (const bool sum : {true, false}) {
    Fixture fixture(2);
    auto args =
        bias_residual_layernorm::make_forward({37, 96}, DType::f32, {true, sum, false, true}, fixture);
    refusal = variant.refuse(op.problem(args), device_for(variant.name));
    if (!refusal.empty()) continue;
    run_variant(op, variant, args, 1);
    const auto out = elements_of(args.out);
    const auto kept = sum ? elements_of(args.sum) : std::vector<double>{};
    if (sum) args.sum = args.x;
    args.out = args.residual;
    run_variant(op, variant, args, 1);
    EXPECT_EQ(elements_of(args.residual), out);
    if (sum) {
      EXPECT_EQ(elements_of(args.x), kept);
    }
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A count from the device: its rows have the bits that they have without it.
TEST_P(Forward, OfAsManyRowsAsTheDeviceSays) {
  const auto& op = bias_residual_layernorm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  std::string refusal;
  int checked = 0;
  for (const std::int32_t rows : {0, 17, 64, 100}) {
    Fixture fixture(2);
    auto args = bias_residual_layernorm::make_forward({64, 96}, DType::f32, {}, fixture);
    refusal = variant.refuse(op.problem(args), device_for(variant.name));
    if (!refusal.empty()) continue;
    run_variant(op, variant, args, 1);
    auto all = elements_of(args.out);
    args.rows = fixture.integers({rows});
    args.out = fixture.output(DType::f32, {64, 96});
    run_variant(op, variant, args, 1);
    auto some = elements_of(args.out);
    for (auto* values : {&all, &some}) values->resize(static_cast<std::size_t>(std::min(rows, 64) * 96));
    EXPECT_EQ(some, all) << rows;
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// An encoder that is batch-invariant has its bits from this.
TEST_P(Forward, ARowDoesNotDependOnTheOthers) {
  const auto& op = bias_residual_layernorm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  constexpr std::int64_t kMany = 150, kFew = 7;
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t C : {96, 768}) {
      Fixture fixture(3);
      auto args =
          bias_residual_layernorm::make_forward({kMany, C}, dtype, {true, false, false, false}, fixture);
      refusal = variant.refuse(op.problem(args), device_for(variant.name));
      if (!refusal.empty()) continue;
      run_variant(op, variant, args, 1);
      auto wanted = elements_of(args.out);
      wanted.resize(static_cast<std::size_t>(kFew * C));
      for (Tensor* tensor : {&args.x, &args.residual, &args.out}) *tensor = tensor->slice(0, 0, kFew);
      run_variant(op, variant, args, 1);
      EXPECT_EQ(elements_of(args.out), wanted) << name_of(dtype) << " " << C;
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, TakesRowsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = bias_residual_layernorm::make_forward({4, 64}, DType::bf16, {}, fixture);
  args.x = between_packs(args.x);
  for (Tensor* tensor : {&args.residual, &args.out}) *tensor = tensor->slice(0, 0, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason = check_unaligned(bias_residual_layernorm_forward_op(), GetParam(), fixture, args,
                                      reduction, {"cuda.state_row", "cuda.warp_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(BiasResidualLayerNorm, Forward,
                         ::testing::ValuesIn(variant_names(bias_residual_layernorm_forward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // of the variants of a GPU

TEST_P(HugeForward, GivesEveryRowItsBits) {
  std::string refusal;
  int checked = 0;
  for (const bool sum : {true, false}) {
    Fixture fixture(5);
    const auto args =
        bias_residual_layernorm::make_forward({509, 768}, DType::bf16, {true, sum, false, true}, fixture);
    const auto reason = check_repeated(bias_residual_layernorm_forward_op(), GetParam(), fixture, args,
                                       [](std::string_view) { return 768.0; },
                                       {.beyond = "x", .once = {"x_bias", "weight", "bias"}});
    reason.empty() ? void(++checked) : void(refusal = reason);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(BiasResidualLayerNorm, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(bias_residual_layernorm_forward_op())),
                         test_name);

TEST(BiasResidualLayerNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(4);
  Context context{ContextOptions{}};
  const auto args =
      bias_residual_layernorm::make_forward({3, 40}, DType::f32, {true, true, false, true}, fixture);
  auto wrong = args;
  wrong.residual = fixture.random(DType::f32, {3, 39});
  EXPECT_THROW(bias_residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.sum = wrong.out;
  EXPECT_THROW(bias_residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.x_bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(bias_residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.rms = true;
  EXPECT_THROW(bias_residual_layernorm_forward(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
