#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/global_norm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The reference is among them: the results of the cases below are known.
std::vector<std::string> all_names() {
  auto names = variant_names(global_norm_op());
  names.emplace_back(kReference);
  return names;
}

class Variants : public testing::VariantTest {
 protected:
  // Runs the variant under test; returns its reason if it refuses, else "".
  std::string run(const GlobalNorm& args) {
    const auto& variant = find_variant(global_norm_op(), GetParam());
    std::string reason = variant.refuse(global_norm_op().problem(args), device_for(variant.name));
    if (reason.empty()) run_variant(global_norm_op(), variant, args, 2);
    return reason;
  }
};

TEST_P(Variants, MatchTheReference) {
  Tally tally;
  for (const auto& c : taken(global_norm_kernels::test_cases())) {
    Fixture fixture(c.sizes.size());
    const auto args = global_norm_kernels::make(c, DType::f32, fixture);
    const auto reduction = [](std::string_view) { return 1.0; };  // summed in fp64
    tally.add(check_variant(global_norm_op(), GetParam(), fixture, args, reduction));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Variants, KnownNormsAndScales) {
  struct Known {
    float a, b, max_norm, norm, scale;
  };
  const Known cases[] = {{3, 4, 0, 5, 1},
                         {3, 4, 5, 5, 1},
                         {3, 4, 10, 5, 1},
                         {3, -4, 1, 5, 0.2f},
                         {0, 0, 1, 0, 1},
                         {3e30f, 4e30f, 5, 5e30f, 1e-30f},
                         {3e-30f, 4e-30f, 1, 5e-30f, 1},
                         {kNaN, 1, 1, kNaN, kNaN},
                         {1, kNaN, 0, kNaN, kNaN},
                         {kInfinity, 1, 1, kInfinity, kNaN},
                         {1, -kInfinity, 0, kInfinity, kNaN},
                         {kInfinity, kNaN, 1, kNaN, kNaN},
                         {3e38f, 3e38f, 1, kInfinity, kNaN}};  // finite, but not their norm
  for (const Known& known : cases) {
    Fixture fixture(1);
    auto args = global_norm_kernels::make({{70000, 1}, 0, known.max_norm}, DType::f32, fixture);
    args.gradients[0].as<float>()[69999] = known.a;
    args.gradients[1].as<float>()[0] = known.b;
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    const float norm = args.norm.as<float>()[0], scale = args.scale.as<float>()[0];
    if (std::isfinite(known.norm)) {
      EXPECT_FLOAT_EQ(norm, known.norm);
      EXPECT_FLOAT_EQ(scale, known.scale);
    } else {
      EXPECT_EQ(std::isnan(norm), std::isnan(known.norm)) << known.a << " " << known.b;
      EXPECT_FALSE(std::isfinite(norm)) << known.a << " " << known.b;
      EXPECT_TRUE(std::isnan(scale)) << known.a << " " << known.b;
    }
  }
}

// AdamW's scalars surround the scale; they stay as they are.
TEST_P(Variants, WritesOneElementOfATensor) {
  Fixture fixture(2);
  auto args = global_norm_kernels::make({{10}, 1, 1e-3}, DType::f32, fixture);
  const Tensor scalars = fixture.random(DType::f32, {4});
  const auto before = elements_of(scalars);
  args.scale = scalars.slice(0, 3, 1);
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(scalars.as<float>()[i], static_cast<float>(before[i]));
  EXPECT_FLOAT_EQ(scalars.as<float>()[3] * args.norm.as<float>()[0], 1e-3f);
}

// With keep_nan, one bad gradient also halts the updates after it.
TEST_P(Variants, AScaleThatIsNaNMayStaySo) {
  for (const bool keep : {false, true}) {
    Fixture fixture(6);
    auto args = global_norm_kernels::make({{10}}, DType::f32, fixture);
    args.keep_nan = keep;
    args.scale.as<float>()[0] = std::nanf("");
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    EXPECT_EQ(std::isnan(args.scale.as<float>()[0]), keep);
    args.scale.as<float>()[0] = 1;
    run(args);
    EXPECT_FALSE(std::isnan(args.scale.as<float>()[0]));
  }
}

TEST_P(Variants, TheScaleIsOptional) {
  Fixture fixture(3);
  auto args = global_norm_kernels::make({{10}}, DType::f32, fixture);
  args.scale = {};
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_GT(args.norm.as<float>()[0], 0.0f);
}

TEST_P(Variants, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = global_norm_kernels::make({{100003, 7, 40000}}, DType::f32, fixture);
  const auto reason = check_repeats(global_norm_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(GlobalNorm, Variants, ::testing::ValuesIn(all_names()), test_name);

class Huge : public testing::VariantTest {};  // GPU variants

TEST_P(Huge, IsTheLengthOfTheWhole) {
  Fixture fixture(7);
  auto args = global_norm_kernels::make({{200000, 5}}, DType::f32, fixture);
  args.scale = {};
  const auto reason =
      check_repeated(global_norm_op(), GetParam(), fixture, args, [](std::string_view) { return 1.0; },
                     {.beyond = "gradient", .once = {"norm"}, .sum = [](double, double norm, double times) {
                        return std::sqrt(times) * norm;
                      }});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(GlobalNorm, Huge, ::testing::ValuesIn(gpu_variant_names(global_norm_op())),
                         test_name);

TEST(GlobalNormReference, IsTheLengthOfTheGradientInFp64) {
  Fixture fixture(4);
  const auto args = global_norm_kernels::make({{30, 12}, 1e200, 0}, DType::f64, fixture);
  run_variant(global_norm_op(), find_variant(global_norm_op(), kReference), args, 1);
  long double sum = 0;
  for (const Tensor& g : args.gradients) {
    for (const double x : elements_of(g)) sum += static_cast<long double>(x) * static_cast<long double>(x);
  }
  EXPECT_DOUBLE_EQ(args.norm.as<double>()[0], static_cast<double>(std::sqrt(sum)));
}

TEST(GlobalNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto args = global_norm_kernels::make({{40, 3}}, DType::f32, fixture);
  auto wrong = args;
  wrong.gradients[1] = fixture.random(DType::bf16, {3});
  EXPECT_THROW(global_norm(context, wrong), Error);
  wrong = args;
  wrong.norm = fixture.output(DType::f32, {2});
  EXPECT_THROW(global_norm(context, wrong), Error);
  for (const double limit : {-1.0, std::nan("")}) {
    wrong = args;
    wrong.max_norm = limit;
    EXPECT_THROW(global_norm(context, wrong), Error);
  }
}

}  // namespace
}  // namespace warpwright::ops
