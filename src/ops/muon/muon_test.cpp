#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/adamw/rounding.hpp"
#include "ops/muon/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

double three_terms(std::string_view) {
  return 3;
}

template <class A>
void expect_nothing_changes(const Op<A>& op, std::string_view name, Fixture& fixture, const A& args) {
  fixture.snapshot();
  run_variant(op, find_variant(op, name), args, 2);
  for (const auto& storage : fixture.storages()) EXPECT_TRUE(storage.bytes == storage.before);
}

constexpr double kNotFinite[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()};

class Momentum : public testing::VariantTest {};
class Scale : public testing::VariantTest {};
class Update : public testing::VariantTest {};

TEST_P(Momentum, MatchesTheReference) {
  for (const auto& c : taken(muon::test_cases())) {
    for (const double scale : {1.0, 0.25}) {
      Fixture fixture(static_cast<std::uint64_t>(c.elements));
      const auto args = muon::make_momentum(c, DType::f32, scale, fixture);
      EXPECT_EQ(check_variant(muon_momentum_op(), GetParam(), fixture, args, three_terms), "");
    }
  }
}

TEST_P(Momentum, AScaleThatIsNotFiniteChangesNothing) {
  for (const double scale : kNotFinite) {
    Fixture fixture(1);
    expect_nothing_changes(muon_momentum_op(), GetParam(), fixture,
                           muon::make_momentum({100}, DType::f32, scale, fixture));
  }
}

TEST_P(Momentum, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = muon::make_momentum({70001}, DType::f32, 1, fixture);
  EXPECT_EQ(check_repeats(muon_momentum_op(), GetParam(), fixture, args), "");
}

TEST_P(Scale, MatchesTheReference) {
  for (const auto& c : taken(muon::test_cases())) {
    for (const DType dtype : dtypes_for(muon_scale_op(), GetParam())) {
      for (const bool with_norm : {false, true}) {
        Fixture fixture(static_cast<std::uint64_t>(c.elements));
        const auto args = muon::make_scale(c, dtype, with_norm, fixture);
        EXPECT_EQ(check_variant(muon_scale_op(), GetParam(), fixture, args, three_terms), "");
      }
    }
  }
}

TEST_P(Scale, ANormOfZeroGivesZeros) {
  Fixture fixture(2);
  const auto args = muon::make_scale({20}, DType::f32, true, fixture);
  for (const Tensor& zero : {args.x, args.norm}) {
    for (std::int64_t i = 0; i < zero.elements(); ++i) store_element(zero, i, 0);
  }
  run_variant(muon_scale_op(), find_variant(muon_scale_op(), GetParam()), args, 1);
  for (const double out : elements_of(args.out)) EXPECT_EQ(out, 0);
}

TEST_P(Update, MatchesTheReference) {
  for (const auto& c : taken(muon::test_cases())) {
    for (const DType dtype : dtypes_for(muon_update_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.elements));
      const auto args = muon::make_update(c, dtype, true, 1, fixture);
      EXPECT_EQ(check_variant(muon_update_op(), GetParam(), fixture, args, three_terms), "");
    }
  }
}

TEST_P(Update, AScaleThatIsNotFiniteChangesNothing) {
  for (const double scale : kNotFinite) {
    for (const bool masters : {false, true}) {
      Fixture fixture(3);
      expect_nothing_changes(muon_update_op(), GetParam(), fixture,
                             muon::make_update({100}, DType::bf16, masters, scale, fixture));
    }
  }
}

// The same arguments with an fp32 parameter, the master if there is one, and an fp32 x.
MuonUpdate with_fp32_parameter(MuonUpdate args, Fixture& fixture) {
  args.parameter = adamw_kernels::widened(args.parameter, args.remainder, fixture);
  args.x = adamw_kernels::widened(args.x, {}, fixture);
  args.remainder = {};
  return args;
}

class WithMasters : public Update {};  // also the reference

TEST_P(WithMasters, AMasterHasTheBitsOfAnFp32Parameter) {
  for (const auto& c : taken(muon::test_cases())) {
    Fixture fixture(static_cast<std::uint64_t>(c.elements)), other_fixture(1);
    const auto args = muon::make_update(c, DType::bf16, true, 1, fixture);
    const MuonUpdate other = with_fp32_parameter(args, other_fixture);
    const auto& variant = find_variant(muon_update_op(), GetParam());
    run_variant(muon_update_op(), variant, args, 2);
    run_variant(muon_update_op(), variant, other, 2);
    EXPECT_EQ(adamw_kernels::differing_elements(other.parameter, args.parameter, args.remainder), 0)
        << c.elements;
  }
}

// As the test of AdamW's that has this name.
TEST_P(WithMasters, ARemainderThatDoesNotFitBecomesTheLargest) {
  Fixture fixture(4);
  const auto args = muon::make_update({1007}, DType::bf16, true, 1, fixture);
  store_element(args.scalars, 0, 0);  // the learning rate
  for (std::int64_t i = 0; i < args.parameter.elements(); ++i) {
    args.parameter.as<bf16>()[i].bits = i % 2 ? 0xbf81 : 0x3f81;
    args.remainder.as<std::int16_t>()[i] = INT16_MIN;
  }
  run_variant(muon_update_op(), find_variant(muon_update_op(), GetParam()), args, 2);
  for (std::int64_t i = 0; i < args.parameter.elements(); ++i) {
    EXPECT_EQ(args.parameter.as<bf16>()[i].bits, i % 2 ? 0xbf80 : 0x3f80);
    EXPECT_EQ(args.remainder.as<std::int16_t>()[i], INT16_MAX);
  }
}

// The parameter must be the fp32 one, rounded with the bits of (seed, step, parameter, element).
TEST_P(Update, WithoutAMasterRoundsWhatAnFp32ParameterWouldBe) {
  for (const auto& c : taken(muon::test_cases())) {
    Fixture fixture(static_cast<std::uint64_t>(c.elements)), other_fixture(1);
    const auto args = muon::make_update(c, DType::bf16, false, 1, fixture);
    const MuonUpdate other = with_fp32_parameter(args, other_fixture);
    fixture.snapshot();
    const auto& variant = find_variant(muon_update_op(), GetParam());
    run_variant(muon_update_op(), variant, args, 2);
    expect_only_written(fixture, uses_of(args));
    run_variant(muon_update_op(), variant, other, 2);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < c.elements; ++i) {
      const auto block = adamw_kernels::random_block(args.random.as<std::int32_t>(), args.number, i / 8);
      const bf16 wanted(adamw_kernels::stochastically_rounded(
          other.parameter.as<float>()[i], adamw_kernels::random_half(block, static_cast<int>(i % 8))));
      wrong += args.parameter.as<bf16>()[i].bits != wanted.bits;
    }
    EXPECT_EQ(wrong, 0) << c.elements;
  }
}

TEST_P(Update, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = muon::make_update({70001}, DType::bf16, false, 1, fixture);
  EXPECT_EQ(check_repeats(muon_update_op(), GetParam(), fixture, args), "");
}

INSTANTIATE_TEST_SUITE_P(Muon, Momentum, ::testing::ValuesIn(variant_names(muon_momentum_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Muon, Scale, ::testing::ValuesIn(variant_names(muon_scale_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Muon, Update, ::testing::ValuesIn(variant_names(muon_update_op())), test_name);
std::vector<std::string> all_updates() {
  std::vector<std::string> names = variant_names(muon_update_op());
  names.emplace_back(kReference);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Muon, WithMasters, ::testing::ValuesIn(all_updates()), test_name);

class HugeMomentum : public testing::VariantTest {};  // for the variants of a GPU
class HugeScale : public testing::VariantTest {};
class HugeUpdate : public testing::VariantTest {};

TEST_P(HugeMomentum, GivesEveryElementItsBits) {
  Fixture fixture(5);
  const auto args = muon::make_momentum({50000}, DType::f32, 0.5, fixture);
  const auto reason = check_repeated(muon_momentum_op(), GetParam(), fixture, args, three_terms,
                                     {.beyond = "m", .once = {"scalars"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeScale, GivesEveryElementItsBits) {
  Fixture fixture(6);
  const auto args = muon::make_scale({50000}, DType::bf16, true, fixture);
  const auto reason = check_repeated(muon_scale_op(), GetParam(), fixture, args, three_terms,
                                     {.beyond = "x", .once = {"norm"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeUpdate, GivesEveryElementItsBits) {
  Fixture fixture(7);
  const auto args = muon::make_update({50000}, DType::bf16, true, 0.5, fixture);
  const auto reason = check_repeated(muon_update_op(), GetParam(), fixture, args, three_terms,
                                     {.beyond = "parameter", .once = {"scalars"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeMomentum);  // in a build without CUDA
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeScale);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeUpdate);
INSTANTIATE_TEST_SUITE_P(Muon, HugeMomentum, ::testing::ValuesIn(gpu_variant_names(muon_momentum_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Muon, HugeScale, ::testing::ValuesIn(gpu_variant_names(muon_scale_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Muon, HugeUpdate, ::testing::ValuesIn(gpu_variant_names(muon_update_op())),
                         test_name);

TEST(Muon, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(4);
  Context context{ContextOptions{}};
  auto momentum = muon::make_momentum({40}, DType::f32, 1, fixture);
  momentum.m = fixture.random(DType::f32, {39});
  EXPECT_THROW(muon_momentum(context, momentum), Error);
  momentum = muon::make_momentum({40}, DType::f32, 1, fixture);
  for (const double wrong : {-0.1, 1.0, std::nan("")}) {
    momentum.momentum = wrong;
    EXPECT_THROW(muon_momentum(context, momentum), Error);
  }
  auto scale = muon::make_scale({40}, DType::bf16, true, fixture);
  scale.norm = fixture.random(DType::f32, {2});
  EXPECT_THROW(muon_scale(context, scale), Error);
  scale = muon::make_scale({40}, DType::bf16, true, fixture);
  scale.x = fixture.random(DType::bf16, {40});
  EXPECT_THROW(muon_scale(context, scale), Error);
  auto update = muon::make_update({40}, DType::bf16, false, 1, fixture);
  update.random = {};
  EXPECT_THROW(muon_update(context, update), Error);
  update = muon::make_update({40}, DType::f32, true, 1, fixture);
  update.remainder = adamw_kernels::random_remainders({40}, fixture);
  EXPECT_THROW(muon_update(context, update), Error);
  update = muon::make_update({40}, DType::bf16, true, 1, fixture);
  update.x = fixture.random(DType::f32, {40});
  EXPECT_THROW(muon_update(context, update), Error);
}

}  // namespace
}  // namespace warpwright::ops
