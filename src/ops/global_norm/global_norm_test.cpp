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

// Runs a variant; returns its reason if it refuses, else "".
template <class A>
std::string run(const Op<A>& op, const std::string& name, const A& args) {
  const auto& variant = find_variant(op, name);
  std::string reason = variant.refuse(op.problem(args), device_for(variant.name));
  if (reason.empty()) run_variant(op, variant, args, 2);
  return reason;
}

class SumsOfSquares : public testing::VariantTest {};

TEST_P(SumsOfSquares, MatchTheReference) {
  Tally tally;
  for (const auto& c : taken(global_norm_kernels::test_cases())) {
    Fixture fixture(c.sizes.size());
    const auto args = global_norm_kernels::make(c, DType::f32, fixture);
    const auto reduction = [](std::string_view) { return static_cast<double>(kSquaresBlock); };
    tally.add(check_variant(squares_op(), GetParam(), fixture, args, reduction));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(SumsOfSquares, RepeatTheirBits) {
  Fixture fixture(8);
  const auto args = global_norm_kernels::make({{100003, 7, 40000}}, DType::f32, fixture);
  const auto reason = check_repeats(squares_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

// A rank has only a part of a tensor.
TEST_P(SumsOfSquares, OfAPartAreThoseOfTheWhole) {
  Fixture fixture(9);
  const auto whole = global_norm_kernels::make({{5 * kSquaresBlock + 77}}, DType::f32, fixture);
  if (const auto reason = run(squares_op(), GetParam(), whole); !reason.empty()) GTEST_SKIP() << reason;
  const Tensor& g = whole.gradients[0];
  const std::int64_t blocks[] = {0, 2, 3, 6};
  for (int part = 0; part < 3; ++part) {
    const std::int64_t from = blocks[part] * kSquaresBlock,
                       to = std::min(g.elements(), blocks[part + 1] * kSquaresBlock);
    Squares args{.gradients = {g.slice(0, from, to - from)},
                 .sums = fixture.output(DType::f64, {blocks[part + 1] - blocks[part]})};
    ASSERT_EQ(run(squares_op(), GetParam(), args), "");
    for (std::int64_t b = 0; b < args.sums.elements(); ++b) {
      EXPECT_EQ(args.sums.as<double>()[b], whole.sums.as<double>()[blocks[part] + b]) << part << " " << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GlobalNorm, SumsOfSquares, ::testing::ValuesIn(variant_names(squares_op())),
                         test_name);

class Norms : public testing::VariantTest {};

// The reference is among them: the results of the cases below are known.
std::vector<std::string> all_names() {
  auto names = variant_names(global_norm_op());
  names.emplace_back(kReference);
  return names;
}

TEST_P(Norms, MatchTheReference) {
  Tally tally;
  for (const std::int64_t blocks : {0, 1, 2, 31, 33, 1000, 1025, 7600}) {
    Fixture fixture(static_cast<std::uint64_t>(blocks));
    const auto args = global_norm_kernels::make_norm(blocks, DType::f32, fixture);
    tally.add(
        check_variant(global_norm_op(), GetParam(), fixture, args, [](std::string_view) { return 1.0; }));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Norms, OfKnownGradients) {
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
  // A device's norm adds a device's squares.
  const std::string squarer = GetParam() == kReference          ? std::string(kReference)
                              : GetParam().starts_with("cuda.") ? "cuda.multi_tensor"
                                                                : "cpu.avx2";
  for (const Known& known : cases) {
    Fixture fixture(1);
    const auto squares = global_norm_kernels::make({{70000, 1}, 0}, DType::f32, fixture);
    squares.gradients[0].as<float>()[69999] = known.a;
    squares.gradients[1].as<float>()[0] = known.b;
    if (const auto reason = run(squares_op(), squarer, squares); !reason.empty()) GTEST_SKIP() << reason;
    GlobalNorm args{.sums = squares.sums,
                    .norm = fixture.output(DType::f32, {1}),
                    .scale = fixture.output(DType::f32, {1}),
                    .max_norm = known.max_norm};
    if (const auto reason = run(global_norm_op(), GetParam(), args); !reason.empty()) GTEST_SKIP() << reason;
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
TEST_P(Norms, WriteOneElementOfATensor) {
  Fixture fixture(2);
  auto args = global_norm_kernels::make_norm(10, DType::f32, fixture);
  args.max_norm = 1e-3;
  const Tensor scalars = fixture.random(DType::f32, {4});
  const auto before = elements_of(scalars);
  args.scale = scalars.slice(0, 3, 1);
  if (const auto reason = run(global_norm_op(), GetParam(), args); !reason.empty()) GTEST_SKIP() << reason;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(scalars.as<float>()[i], static_cast<float>(before[i]));
  EXPECT_FLOAT_EQ(scalars.as<float>()[3] * args.norm.as<float>()[0], 1e-3f);
}

// With keep_nan, one bad gradient also halts the updates after it.
TEST_P(Norms, AScaleThatIsNaNMayStaySo) {
  for (const bool keep : {false, true}) {
    Fixture fixture(6);
    auto args = global_norm_kernels::make_norm(10, DType::f32, fixture);
    args.keep_nan = keep;
    args.scale.as<float>()[0] = kNaN;
    if (const auto reason = run(global_norm_op(), GetParam(), args); !reason.empty()) GTEST_SKIP() << reason;
    EXPECT_EQ(std::isnan(args.scale.as<float>()[0]), keep);
    args.scale.as<float>()[0] = 1;
    run(global_norm_op(), GetParam(), args);
    EXPECT_FALSE(std::isnan(args.scale.as<float>()[0]));
  }
}

TEST_P(Norms, TheScaleIsOptional) {
  Fixture fixture(3);
  auto args = global_norm_kernels::make_norm(10, DType::f32, fixture);
  args.scale = {};
  if (const auto reason = run(global_norm_op(), GetParam(), args); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_GT(args.norm.as<float>()[0], 0.0f);
}

TEST_P(Norms, RepeatTheirBits) {
  Fixture fixture(8);
  const auto args = global_norm_kernels::make_norm(7600, DType::f32, fixture);
  const auto reason = check_repeats(global_norm_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(GlobalNorm, Norms, ::testing::ValuesIn(all_names()), test_name);

class Huge : public testing::VariantTest {};  // GPU variants

TEST_P(Huge, BlocksHaveTheSumsOfTheirElements) {
  Fixture fixture(7);
  const auto args = global_norm_kernels::make({{13 * kSquaresBlock}}, DType::f32, fixture);
  const auto reason = check_repeated(squares_op(), GetParam(), fixture, args,
                                     [](std::string_view) { return static_cast<double>(kSquaresBlock); },
                                     {.beyond = "gradient"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(GlobalNorm, Huge, ::testing::ValuesIn(gpu_variant_names(squares_op())), test_name);

TEST(GlobalNormReference, IsTheLengthOfTheGradientInFp64) {
  Fixture fixture(4);
  const auto squares = global_norm_kernels::make({{30, 12}, 1e100}, DType::f64, fixture);
  run_variant(squares_op(), find_variant(squares_op(), kReference), squares, 1);
  const GlobalNorm args{.sums = squares.sums, .norm = fixture.output(DType::f64, {1}), .scale = {}};
  run_variant(global_norm_op(), find_variant(global_norm_op(), kReference), args, 1);
  long double sum = 0;
  for (const Tensor& g : squares.gradients) {
    for (const double x : elements_of(g)) sum += static_cast<long double>(x) * static_cast<long double>(x);
  }
  EXPECT_DOUBLE_EQ(args.norm.as<double>()[0], static_cast<double>(std::sqrt(sum)));
}

TEST(GlobalNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto gradients = global_norm_kernels::make({{40, 3}}, DType::f32, fixture);
  auto wrong = gradients;
  wrong.gradients[1] = fixture.random(DType::bf16, {3});
  EXPECT_THROW(squares(context, wrong), Error);
  wrong = gradients;
  wrong.sums = fixture.output(DType::f64, {3});
  EXPECT_THROW(squares(context, wrong), Error);
  wrong.sums = fixture.output(DType::f32, {2});
  EXPECT_THROW(squares(context, wrong), Error);
  const auto norm = global_norm_kernels::make_norm(3, DType::f32, fixture);
  auto bad = norm;
  bad.norm = fixture.output(DType::f32, {2});
  EXPECT_THROW(global_norm(context, bad), Error);
  bad = norm;
  bad.sums = fixture.output(DType::f32, {3});
  EXPECT_THROW(global_norm(context, bad), Error);
  for (const double limit : {-1.0, std::nan("")}) {
    bad = norm;
    bad.max_norm = limit;
    EXPECT_THROW(global_norm(context, bad), Error);
  }
}

}  // namespace
}  // namespace warpwright::ops
