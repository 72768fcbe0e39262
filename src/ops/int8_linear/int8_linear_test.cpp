#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/element.hpp"
#include "ops/int8_linear/cases.hpp"
#include "ops/int8_linear/kernels.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

// The sum over k is exact. The scales, their product, the bias and the activation are rounded.
double few_terms(std::string_view) {
  return 4;
}

class Int8 : public testing::VariantTest {};

TEST_P(Int8, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(int8::test_cases())) {
    for (const DType dtype : dtypes_for(int8_linear_op(), GetParam())) {
      for (const Activation activation : {Activation::none, Activation::gelu_erf}) {
        Fixture fixture(static_cast<std::uint64_t>(c.M + c.K));
        auto args = int8::make_args(c, dtype, fixture, activation, activation != Activation::none);
        if (activation != Activation::none) args = int8::with_factors(args, fixture);
        if (c.M % 2 == 0) args = int8::with_residual(args, fixture);
        tally.add(check_variant(int8_linear_op(), GetParam(), fixture, args, few_terms));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Int8, TakesEveryActivation) {
  Tally tally;
  for (const Activation activation : {Activation::gelu_tanh, Activation::relu, Activation::tanh}) {
    Fixture fixture(3);
    const auto args = int8::make_args({37, 50, 100}, DType::f32, fixture, activation);
    tally.add(check_variant(int8_linear_op(), GetParam(), fixture, args, few_terms));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// Rows that begin at any multiple of the element, with other elements between them.
TEST_P(Int8, TakesStridedRows) {
  for (const DType dtype : dtypes_for(int8_linear_op(), GetParam())) {
    Fixture fixture(5);
    auto args = int8::make_args({19, 45, 77}, dtype, fixture);
    args.x = fixture.random(dtype, {19, 90}).slice(1, 3, 77);
    args.out = fixture.output(dtype, {19, 61}).slice(1, 5, 45);
    EXPECT_EQ(check_variant(int8_linear_op(), GetParam(), fixture, args, few_terms), "");
  }
}

TEST_P(Int8, PackedWeightsGiveTheSameBits) {
  const auto& variant = find_variant(int8_linear_op(), GetParam());
  const Context context{ContextOptions{}};
  for (const auto& c : int8::test_cases()) {
    Fixture fixture(7);
    const auto plain = int8::with_factors(int8::make_args(c, DType::f32, fixture), fixture);
    auto packed = int8::with_packed(plain, context, fixture);
    packed.out = fixture.output(DType::f32, {c.M, c.N});
    run_variant(int8_linear_op(), variant, plain, 2);
    run_variant(int8_linear_op(), variant, packed, 3);
    EXPECT_EQ(elements_of(plain.out), elements_of(packed.out)) << c.M << " " << c.N << " " << c.K;
  }
}

// A row's bits do not depend on the number of rows.
TEST_P(Int8, IsBatchInvariant) {
  const auto& variant = find_variant(int8_linear_op(), GetParam());
  Fixture fixture(9);
  const auto all = int8::make_args({70, 100, 200}, DType::bf16, fixture, Activation::gelu_erf);
  run_variant(int8_linear_op(), variant, all, 3);
  for (const std::int64_t row : {0, 1, 17, 69}) {
    auto one = all;
    one.x = all.x.slice(0, row, 1);
    one.out = fixture.output(DType::bf16, {1, 100});
    run_variant(int8_linear_op(), variant, one, 2);
    EXPECT_EQ(elements_of(one.out), elements_of(all.out.slice(0, row, 1))) << row;
  }
}

// Two members share a team's rows, in several blocks: one waits for the other before the next block.
TEST_P(Int8, MembersOfATeamWaitForEachOther) {
  const auto& variant = find_variant(int8_linear_op(), GetParam());
  DeviceInfo device = device_for(variant.name);
  device.threads = 2;
  Fixture fixture(10);
  const auto args = int8::make_args({528, 2304, 384}, DType::f32, fixture);
  const int8::Grid grid = int8::grid_of(args.problem(), device);
  ASSERT_EQ(grid.row_teams, 1);
  ASSERT_EQ(grid.col_teams, 2);
  ASSERT_LT(grid.block, 528);
  auto alone = args;
  alone.out = fixture.output(DType::f32, {528, 2304});
  run_variant(int8_linear_op(), variant, alone, 1);
  for (int run = 0; run < 3; ++run) {
    run_variant(int8_linear_op(), variant, args, 2);
    EXPECT_EQ(elements_of(args.out), elements_of(alone.out)) << run;
  }
}

// The kernels agree to the bit, because their sums are exact and the steps after them are the same.
TEST_P(Int8, GivesTheBitsOfTheOtherKernels) {
  Fixture fixture(12);
  const auto args = int8::with_factors(int8::make_args({37, 70, 300}, DType::f32, fixture), fixture);
  run_variant(int8_linear_op(), find_variant(int8_linear_op(), GetParam()), args, 2);
  for (const auto& other : int8_linear_op().variants) {
    if (other.name == kReference || !missing_for(other.name).empty()) continue;
    auto theirs = args;
    theirs.out = fixture.output(DType::f32, {37, 70});
    run_variant(int8_linear_op(), other, theirs, 1);
    EXPECT_EQ(elements_of(theirs.out), elements_of(args.out)) << other.name;
  }
}

TEST_P(Int8, ExtremeRows) {
  const auto& variant = find_variant(int8_linear_op(), GetParam());
  Fixture fixture(11);
  const auto args = int8::make_args({8, 40, 70}, DType::f32, fixture, Activation::none, false);
  auto* x = args.x.as<float>();
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  x[0 * 70 + 69] = nan;
  x[1 * 70] = -infinity;
  std::fill_n(x + 2 * 70, 70, 0.0f);
  std::fill_n(x + 3 * 70, 70, 1e-40f);  // counts as zeros
  std::fill_n(x + 4 * 70, 70, 1e37f);
  for (int k = 0; k < 70; ++k) x[5 * 70 + k] = -0.5f;  // all at the low end
  for (int k = 0; k < 70; ++k) x[6 * 70 + k] = k ? 1.0f : 255.0f, x[7 * 70 + k] = k ? 0.5f : 255.0f;  // a tie
  args.weight.as<float>()[0] = 1e-3f;
  run_variant(int8_linear_op(), variant, args, 2);
  auto wanted = args;
  wanted.out = fixture.output(DType::f32, {8, 40});
  run_variant(int8_linear_op(), find_variant(int8_linear_op(), kReference), wanted, 1);
  for (int i = 0; i < 8 * 40; ++i) {
    const float out = args.out.as<float>()[i], reference = wanted.out.as<float>()[i];
    if (i / 40 < 2) {
      EXPECT_TRUE(std::isnan(out) && std::isnan(reference)) << i;
    } else {
      EXPECT_NEAR(out, reference, 1e-6f * std::abs(reference)) << i;
    }
  }
}

// The longest sum of the largest products.
TEST_P(Int8, TheDeepestSumIsExact) {
  const auto& variant = find_variant(int8_linear_op(), GetParam());
  Fixture fixture(13);
  const std::int64_t K = Int8Linear::kMostDepth;
  const auto args = int8::make_args({2, 3, K}, DType::f32, fixture, Activation::none, false);
  std::fill_n(args.x.as<float>(), K, 255.0f);
  std::fill_n(args.x.as<float>() + K, K, -255.0f);
  std::fill_n(args.weight.as<float>(), 3 * K, 127.0f);
  std::fill_n(args.weight.as<float>() + K, K, -127.0f);
  run_variant(int8_linear_op(), variant, args, 1);
  const auto most = static_cast<float>(std::int64_t{255} * 127 * K);
  for (int m = 0; m < 2; ++m) {
    for (int n = 0; n < 3; ++n)
      EXPECT_EQ(args.out.as<float>()[m * 3 + n], (n == 1) == (m == 1) ? most : -most);
  }
}

// The kernels for few rows and for many take turns at four rows; a row has the same bits on both sides.
TEST(Int8Linear, TheChosenKernelIsBatchInvariant) {
  Context context{ContextOptions{}};
  if (const std::string reason = refuse_int8(context.device()); !reason.empty()) GTEST_SKIP() << reason;
  Fixture fixture(14);
  const auto all = int8::make_args({9, 70, 300}, DType::f32, fixture);
  int8_linear(context, all);
  for (const std::int64_t rows : {1, 4, 5}) {
    auto some = all;
    some.x = all.x.slice(0, 0, rows);
    some.out = fixture.output(DType::f32, {rows, 70});
    int8_linear(context, some);
    EXPECT_EQ(elements_of(some.out), elements_of(all.out.slice(0, 0, rows))) << rows;
  }
}

// A forward of fewer rows never needs more scratch than the plan for the most rows has.
TEST(Int8Linear, FewerRowsNeedNoMoreScratch) {
  DeviceInfo device = cpu_device_info();
  for (const int threads : {1, 2, 6, 8, 64}) {
    device.threads = threads;
    std::size_t before = 0;
    for (std::int64_t M = 0; M < 20000; M += 7) {
      const Int8LinearProblem p{.M = M, .N = 1152, .K = 384, .packed = true};
      const std::size_t bytes = int8::workspace(p, device);
      const int8::Grid grid = int8::grid_of(p, device);
      EXPECT_GE(bytes, before) << threads << " threads, " << M << " rows";
      EXPECT_GE(bytes, static_cast<std::size_t>(grid.row_teams) * grid.block_bytes);
      before = bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Int8Linear, Int8, ::testing::ValuesIn(variant_names(int8_linear_op())), test_name);

double error_of_rounding(const Int8Linear& args) {
  run_variant(int8_linear_op(), find_variant(int8_linear_op(), kReference), args, 1);
  std::vector<double> exact;
  const std::int64_t K = args.x.shape[1];
  for (std::int64_t m = 0; m < args.x.shape[0]; ++m) {
    for (std::int64_t n = 0; n < args.weight.shape[0]; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        sum += load_element(args.x, m * K + k) * load_element(args.weight, n * K + k);
      }
      exact.push_back(sum);
    }
  }
  return compare(elements_of(args.out), exact, DType::f32).relative;
}

// Rounding costs about 1 % of a random product.
TEST(Int8LinearReference, ErrorOfRounding) {
  Fixture fixture(15);
  const double error =
      error_of_rounding(int8::make_args({20, 30, 768}, DType::f32, fixture, Activation::none, false));
  EXPECT_LT(error, 0.02);
  EXPECT_GT(error, 0.002);
}

TEST(Int8LinearReference, FactorsKeepTheDigitsOfSmallColumns) {
  Fixture fixture(16);
  auto args = int8::with_factors(int8::make_args({20, 30, 768}, DType::f32, fixture, Activation::none, false),
                                 fixture);
  // Large columns have small weights, so that all of them matter as much.
  for (std::int64_t n = 0; n < 30; ++n) {
    for (std::int64_t k = 0; k < 768; ++k)
      args.weight.as<float>()[n * 768 + k] *= args.factors.as<float>()[k];
  }
  const double with = error_of_rounding(args);
  args.factors = {};
  EXPECT_LT(with, 0.02);
  EXPECT_GT(error_of_rounding(args), 5 * with);
}

std::string error_of(const Int8Linear& args) {
  Context context{ContextOptions{}};
  try {
    int8_linear(context, args);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Int8Linear, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(17);
  const auto args = int8::make_args({4, 10, 6}, DType::f32, fixture);
  auto wrong = args;
  wrong.out = fixture.output(DType::f32, {4, 9});
  EXPECT_NE(error_of(wrong).find("out"), std::string::npos) << error_of(wrong);
  wrong = args;
  wrong.residual = fixture.random(DType::f32, {4, 11});
  EXPECT_NE(error_of(wrong).find("residual"), std::string::npos) << error_of(wrong);
  wrong = args;
  wrong.bias = fixture.random(DType::bf16, {10});
  EXPECT_NE(error_of(wrong).find("bias"), std::string::npos) << error_of(wrong);
  wrong = args;
  wrong.weight = fixture.random(DType::f32, {10, 7});
  EXPECT_NE(error_of(wrong).find("weight"), std::string::npos) << error_of(wrong);
  wrong = args;
  alignas(64) std::byte few[64];
  wrong.packed = Tensor(few, DType::u8, {64});
  EXPECT_NE(error_of(wrong).find("packed"), std::string::npos) << error_of(wrong);
  wrong = args;
  wrong.factors = fixture.random(DType::f32, {7});
  EXPECT_NE(error_of(wrong).find("factors"), std::string::npos) << error_of(wrong);
  Fixture shapes = Fixture::of_shapes();
  wrong = int8::make_args({1, 1, Int8Linear::kMostDepth + 1}, DType::f32, shapes);
  EXPECT_NE(error_of(wrong).find("K is 65537"), std::string::npos) << error_of(wrong);
}

TEST(Int8Linear, RefusesToPackWhatIsNotFinite) {
  Fixture fixture(19);
  const Context context{ContextOptions{}};
  const auto error = [&](const Int8Linear& args) {
    try {
      int8::with_packed(args, context, fixture);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  auto args = int8::with_factors(int8::make_args({1, 40, 6}, DType::f32, fixture), fixture);
  EXPECT_EQ(error(args), "");
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    args.factors.as<float>()[2] = bad;
    EXPECT_NE(error(args).find("factor 2"), std::string::npos) << error(args);
  }
  args.factors = {};
  args.weight.as<float>()[35 * 6 + 2] = std::numeric_limits<float>::infinity();
  EXPECT_NE(error(args).find("row 35"), std::string::npos) << error(args);
}

TEST(Int8Linear, NeedsAProcessorWithInstructionsForIt) {
  DeviceInfo device;
  EXPECT_NE(refuse_int8(device), "");
  device.cpu.avx2 = device.cpu.avx512 = true;
  EXPECT_NE(refuse_int8(device), "");
  for (bool CpuFeatures::*feature :
       {&CpuFeatures::avx_vnni, &CpuFeatures::avx512_vnni, &CpuFeatures::amx_int8}) {
    DeviceInfo able = device;
    able.cpu.*feature = true;
    EXPECT_EQ(refuse_int8(able), "");
  }
  device.device.kind = DeviceKind::cuda;
  EXPECT_NE(refuse_int8(device), "");
}

}  // namespace
}  // namespace warpwright::ops
