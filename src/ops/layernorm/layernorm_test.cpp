#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/layernorm/cases.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/testing/repeated.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Forward : public ::testing::TestWithParam<std::string> {};
class Backward : public ::testing::TestWithParam<std::string> {};

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;  // some variants take only some of the row lengths: what each checks is counted
  int checked = 0;
  for (const auto& c : layernorm::test_cases()) {
    for (const DType dtype : dtypes_for(GetParam())) {
      for (const bool statistics : {true, false}) {
        Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
        const auto args = layernorm::make_forward(c, dtype, statistics, fixture);
        // A mean m beside a deviation of 1 costs m·2^-24 in x − mean: the input's own condition.
        const auto reduction = [&](std::string_view) {
          return (1 + c.mean * c.mean) * static_cast<double>(c.C);
        };
        const auto reason = check_variant(layernorm_forward_op(), GetParam(), fixture, args, reduction);
        reason.empty() ? void(++checked) : void(refusal = reason);
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : layernorm::test_cases()) {
    for (const DType dtype : dtypes_for(GetParam())) {
      for (const Store store : {Store::assign, Store::add}) {
        Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
        const auto args = layernorm::make_backward(c, dtype, store, fixture);
        const auto reduction = [&](std::string_view name) {
          return static_cast<double>(name == "dx" ? c.C : std::max<std::int64_t>(c.N, 1));
        };
        const auto reason = check_variant(layernorm_backward_op(), GetParam(), fixture, args, reduction);
        reason.empty() ? void(++checked) : void(refusal = reason);
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Whole packs, but not where a pack begins.
TEST_P(Forward, TakesRowsThatAreNotAligned) {
  Fixture fixture(5);
  auto args = layernorm::make_forward({4, 64}, DType::bf16, true, fixture);
  const auto inside = [](const Tensor& t) { return t.view({256}).slice(0, 1, 192).view({3, 64}); };
  args.x = inside(args.x);
  args.out = inside(args.out);
  args.mean = args.mean.slice(0, 1, 3);
  args.rstd = args.rstd.slice(0, 1, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason = check_variant(layernorm_forward_op(), GetParam(), fixture, args, reduction);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Backward, TakesRowsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = layernorm::make_backward({4, 64}, DType::bf16, Store::add, fixture);
  const auto inside = [](const Tensor& t) { return t.view({256}).slice(0, 1, 192).view({3, 64}); };
  args.x = inside(args.x);
  args.dx = inside(args.dx);
  args.dout = args.dout.slice(0, 1, 3);
  args.mean = args.mean.slice(0, 1, 3);
  args.rstd = args.rstd.slice(0, 1, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason = check_variant(layernorm_backward_op(), GetParam(), fixture, args, reduction);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(LayerNorm, Forward, ::testing::ValuesIn(variant_names(layernorm_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(LayerNorm, Backward, ::testing::ValuesIn(variant_names(layernorm_backward_op())),
                         test_name);

class HugeForward : public ::testing::TestWithParam<std::string> {};  // of the variants of a GPU
class HugeBackward : public ::testing::TestWithParam<std::string> {};

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(8);
  const auto args = layernorm::make_forward({509, 768}, DType::bf16, true, fixture);
  const auto reason =
      check_repeated(layernorm_forward_op(), GetParam(), fixture, args,
                     [](std::string_view) { return 768.0; }, {.beyond = "x", .once = {"weight", "bias"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeBackward, GivesEveryRowItsBitsAndSumsThemAll) {
  Fixture fixture(9);
  const auto args = layernorm::make_backward({509, 768}, DType::bf16, Store::add, fixture);
  const auto reason =
      check_repeated(layernorm_backward_op(), GetParam(), fixture, args,
                     [](std::string_view name) { return name == "dx" ? 768.0 : 509.0; },
                     {.beyond = "x", .once = {"weight", "dweight", "dbias"}, .exact_sums = true});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(LayerNorm, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(layernorm_forward_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(LayerNorm, HugeBackward,
                         ::testing::ValuesIn(gpu_variant_names(layernorm_backward_op())), test_name);

TEST(LayerNormReference, BackwardIsTheDerivativeOfForward) {
  Fixture fixture(1);
  const layernorm::Case c{5, 7};
  auto forward = layernorm::make_forward(c, DType::f64, true, fixture);
  auto backward = layernorm::make_backward(c, DType::f64, Store::assign, fixture);
  backward.x = forward.x;
  backward.weight = forward.weight;
  backward.mean = forward.mean;
  backward.rstd = forward.rstd;
  const auto loss = [&] {
    run_variant(layernorm_forward_op(), find_variant(layernorm_forward_op(), kReference), forward, 1);
    double total = 0;
    for (std::int64_t i = 0; i < forward.out.elements(); ++i) {
      total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
    }
    return total;
  };
  loss();
  run_variant(layernorm_backward_op(), find_variant(layernorm_backward_op(), kReference), backward, 1);
  check_gradient(loss, forward.x, backward.dx, "dx");
  check_gradient(loss, forward.weight, backward.dweight, "dweight");
  check_gradient(loss, forward.bias, backward.dbias, "dbias");
}

TEST_P(Forward, NaNStaysInItsRow) {
  Fixture fixture(2);
  const auto args = layernorm::make_forward({3, 40}, DType::f32, true, fixture);
  const auto& variant = find_variant(layernorm_forward_op(), GetParam());
  if (auto reason = variant.refuse(layernorm_forward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  args.x.as<float>()[40] = std::numeric_limits<float>::quiet_NaN();
  run_variant(layernorm_forward_op(), variant, args, 1);
  for (int i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(args.out.as<float>()[i]), i / 40 == 1);
}

TEST(LayerNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  auto args = layernorm::make_forward({3, 40}, DType::f32, true, fixture);
  auto wrong = args;
  wrong.weight = fixture.random(DType::f32, {39});
  EXPECT_THROW(layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.out = {};
  EXPECT_THROW(layernorm_forward(context, wrong), Error);
}

TEST(LayerNorm, ForcedVariantsAreTakenOrRefusedWithTheReason) {
  Fixture fixture(4);
  const auto args = layernorm::make_forward({3, 40}, DType::f32, true, fixture);
  ContextOptions options;
  options.force["layernorm"] = "reference";
  Context forced(options);
  layernorm_forward(forced, args);
  EXPECT_EQ(choose(forced, layernorm_forward_op(), layernorm_forward_op().problem(args)).name, kReference);
  options.force["layernorm.forward"] = "cpu.imaginary";
  Context unknown(options);
  EXPECT_THROW(layernorm_forward(unknown, args), Error);
}

}  // namespace
}  // namespace warpwright::ops
