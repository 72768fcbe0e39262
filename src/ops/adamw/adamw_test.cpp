#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "ops/adamw/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Variants : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs the variant under test; returns its reason where it refuses, else "".
  std::string run(const AdamW& args) {
    const auto& variant = find_variant(adamw_op(), GetParam());
    std::string reason = variant.refuse(adamw_op().problem(args), device_for(variant.name));
    if (reason.empty()) run_variant(adamw_op(), variant, args, 2);
    return reason;
  }
};

TEST_P(Variants, MatchTheReference) {
  for (const auto& c : taken(adamw_kernels::test_cases())) {
    for (const DType dtype : dtypes_for(GetParam())) {
      for (const double scale : {1.0, 0.25}) {
        Fixture fixture(c.sizes.size());
        const auto args = adamw_kernels::make(c, dtype, scale, fixture);
        const auto reduction = [](std::string_view) { return 4.0; };  // terms of w, m and v
        const auto reason = check_variant(adamw_op(), GetParam(), fixture, args, reduction);
        if (!reason.empty()) GTEST_SKIP() << reason;
      }
    }
  }
}

TEST_P(Variants, AScaleThatIsNotFiniteChangesNothing) {
  for (const double scale :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const DType dtype : dtypes_for(GetParam())) {
      Fixture fixture(1);
      const auto args = adamw_kernels::make({{100, 3}}, dtype, scale, fixture);
      fixture.snapshot();
      if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
      for (const auto& storage : fixture.storages()) EXPECT_TRUE(storage.bytes == storage.before);
    }
  }
}

TEST_P(Variants, TheParameterIsTheRoundedMaster) {
  Fixture fixture(2);
  const auto args = adamw_kernels::make({{1000}}, DType::bf16, 1, fixture);
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  for (int i = 0; i < 1000; ++i) {
    const float master = args.tensors[0].master.as<float>()[i];
    EXPECT_EQ(args.tensors[0].parameter.as<bf16>()[i].bits, bf16(master).bits);
  }
}

// Forty steps from the same start, compared with fp64: errors may add up, not grow.
TEST_P(Variants, FollowsTheReferenceOverManySteps) {
  Fixture fixture(3), twin_fixture(0);
  auto args = adamw_kernels::make({{500}}, DType::f32, 1, fixture);
  for (Tensor* zero : {&args.tensors[0].m, &args.tensors[0].v}) std::memset(zero->data, 0, zero->bytes());
  auto twin = fp64_twin(args, twin_fixture);
  for (int step = 1; step <= 40; ++step) {
    for (const Tensor& schedule : {args.schedule, twin.schedule}) {
      store_element(schedule, 1, 1 - std::pow(0.9, step));
      store_element(schedule, 2, 1 - std::pow(0.999, step));
    }
    const Tensor gradient = fixture.random(DType::f32, {500}, 0.1);
    for (int i = 0; i < 500; ++i) {
      store_element(args.tensors[0].gradient, i, load_element(gradient, i));
      store_element(twin.tensors[0].gradient, i, load_element(gradient, i));
    }
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    run_variant(adamw_op(), find_variant(adamw_op(), kReference), twin, 1);
  }
  const Deviation error =
      compare(elements_of(args.tensors[0].parameter), elements_of(twin.tensors[0].parameter), DType::f32);
  EXPECT_LE(error.relative, tolerance(DType::f32, 40));
}

TEST_P(Variants, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = adamw_kernels::make({{100003, 7, 768}, 0, true}, DType::bf16, 1, fixture);
  const auto reason = check_repeats(adamw_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(AdamW, Variants, ::testing::ValuesIn(variant_names(adamw_op())), test_name);

class Huge : public ::testing::TestWithParam<std::string> {};  // of the variants of a GPU

TEST_P(Huge, GivesEveryElementItsBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(7);
    const auto args = adamw_kernels::make({{200000, 77}}, dtype, 0.5, fixture);
    const auto reason =
        check_repeated(adamw_op(), GetParam(), fixture, args, [](std::string_view) { return 4.0; },
                       {.beyond = "parameter", .once = {"schedule"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(AdamW, Huge, ::testing::ValuesIn(gpu_variant_names(adamw_op())), test_name);

// Steps of SGD, by hand: with β1 = 0, m = g; with β2 = 0, v = g²; so a step is lr · g / (|g| + eps).
TEST(AdamWReference, KnownSteps) {
  Fixture fixture(4);
  auto args = adamw_kernels::make({{2}}, DType::f64, 1, fixture);
  args.beta1 = args.beta2 = 0;
  args.eps = 0.5;
  args.tensors[0].weight_decay = 0.25;
  const double schedule[4] = {0.5, 1, 1, 2};
  std::memcpy(args.schedule.data, schedule, sizeof schedule);
  const double weights[2] = {4, -8}, gradients[2] = {0.75, -1.75};
  std::memcpy(args.tensors[0].parameter.data, weights, sizeof weights);
  std::memcpy(args.tensors[0].gradient.data, gradients, sizeof gradients);
  run_variant(adamw_op(), find_variant(adamw_op(), kReference), args, 1);
  const double* w = args.tensors[0].parameter.as<double>();
  EXPECT_DOUBLE_EQ(w[0], 4 - 0.5 * (1.5 / 2.0 + 1));
  EXPECT_DOUBLE_EQ(w[1], -8 - 0.5 * (-3.5 / 4.0 - 2));
  EXPECT_EQ(args.tensors[0].m.as<double>()[0], 1.5);
  EXPECT_EQ(args.tensors[0].v.as<double>()[1], 12.25);
}

// A step too small to see leaves the loss lower by lr · Σ |∂loss/∂w| where AdamW is a sign descent.
TEST(AdamWReference, DescendsAlongTheGradient) {
  Fixture fixture(5);
  auto args = adamw_kernels::make({{30}}, DType::f64, 1, fixture);
  args.beta1 = args.beta2 = 0;
  args.eps = 0;
  args.tensors[0].weight_decay = 0;
  const double schedule[4] = {1e-6, 1, 1, 1};
  std::memcpy(args.schedule.data, schedule, sizeof schedule);
  double* w = args.tensors[0].parameter.as<double>();
  const auto loss = [&] {
    double sum = 0;
    for (int i = 0; i < 30; ++i) sum += 0.5 * w[i] * w[i];
    return sum;
  };
  double wanted = 0;
  for (int i = 0; i < 30; ++i) {
    args.tensors[0].gradient.as<double>()[i] = w[i];
    wanted += 1e-6 * std::abs(w[i]);
  }
  const double before = loss();
  run_variant(adamw_op(), find_variant(adamw_op(), kReference), args, 1);
  EXPECT_NEAR(before - loss(), wanted, 1e-5 * wanted);
}

TEST(AdamW, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(6);
  Context context{ContextOptions{}};
  const auto args = adamw_kernels::make({{40, 3}}, DType::bf16, 1, fixture);
  auto wrong = args;
  wrong.tensors[1].master = {};
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = args;
  wrong.tensors[0].m = fixture.random(DType::f32, {39});
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = args;
  wrong.schedule = fixture.random(DType::f32, {3});
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = adamw_kernels::make({{40}}, DType::f16, 1, fixture);
  wrong.tensors.push_back(args.tensors[0]);
  EXPECT_THROW(adamw(context, wrong), Error) << "two dtypes of 16 bits";
  wrong = adamw_kernels::make({{40, 40}, 0, true}, DType::bf16, 1, fixture);
  wrong.tensors[1].master = wrong.tensors[0].master;
  EXPECT_THROW(adamw(context, wrong), Error) << "a master beside fp32";
}

}  // namespace
}  // namespace warpwright::ops
