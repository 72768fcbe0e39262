#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/gelu/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

constexpr Activation kForms[] = {Activation::gelu_tanh, Activation::gelu_erf};

double one_term(std::string_view) {
  return 1;
}

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(gelu::test_cases())) {
    for (const DType dtype : dtypes_for(gelu_forward_op(), GetParam())) {
      for (const Activation form : kForms) {
        Fixture fixture(static_cast<std::uint64_t>(c.elements));
        const auto args = gelu::make_forward(c, dtype, form, fixture);
        tally.add(check_variant(gelu_forward_op(), GetParam(), fixture, args, one_term));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(gelu::test_cases())) {
    for (const DType dtype : dtypes_for(gelu_backward_op(), GetParam())) {
      for (const Activation form : kForms) {
        Fixture fixture(static_cast<std::uint64_t>(c.elements));
        const auto args = gelu::make_backward(c, dtype, form, fixture);
        tally.add(check_variant(gelu_backward_op(), GetParam(), fixture, args, one_term));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// Compares element by element on a fine grid, so that no large value hides the error of a small one. Rounding
// an exponent u costs |u| · 2^-24 of e^u, with u ≤ 16 here. A few operations make up the rest.
TEST_P(Forward, KeepsItsRelativePrecisionInTheLeftTail) {
  const auto& variant = find_variant(gelu_forward_op(), GetParam());
  for (const Activation form : kForms) {
    Fixture fixture(1);
    const std::int64_t count = 90001;
    auto args = gelu::make_forward({count}, DType::f32, form, fixture);
    if (auto reason = variant.refuse(gelu_forward_op().problem(args), device_for(variant.name));
        !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    for (std::int64_t i = 0; i < count; ++i) args.x.as<float>()[i] = -4.0f + 1e-4f * static_cast<float>(i);
    Fixture twin_fixture(0);
    const auto twin = fp64_twin(args, twin_fixture);
    run_variant(gelu_forward_op(), find_variant(gelu_forward_op(), kReference), twin, 1);
    run_variant(gelu_forward_op(), variant, args, 1);
    double worst = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double wanted = twin.out.as<double>()[i];
      const double error = std::abs(static_cast<double>(args.out.as<float>()[i]) - wanted);
      if (error > 0) worst = std::max(worst, error / std::abs(wanted));
    }
    EXPECT_LE(worst, 24 * 0x1p-24) << name_of(form);
  }
}

TEST_P(Forward, FarTailsAndNaN) {
  const auto& variant = find_variant(gelu_forward_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Activation form : kForms) {
    Fixture fixture(2);
    auto args = gelu::make_forward({6}, DType::f32, form, fixture);
    if (auto reason = variant.refuse(gelu_forward_op().problem(args), device_for(variant.name));
        !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    const float x[6] = {nan, 30.0f, -30.0f, 1e30f, -1e30f, 0.0f};
    std::copy(x, x + 6, args.x.as<float>());
    run_variant(gelu_forward_op(), variant, args, 1);
    const float* out = args.out.as<float>();
    EXPECT_TRUE(std::isnan(out[0]));
    for (const int i : {1, 3}) EXPECT_EQ(out[i], x[i]);
    for (const int i : {2, 4}) EXPECT_NEAR(out[i], 0.0f, 1e-37f);
    EXPECT_EQ(out[5], 0.0f);
  }
}

TEST_P(Backward, FarTailsAndNaN) {
  const auto& variant = find_variant(gelu_backward_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tally tally;
  for (const Activation form : kForms) {
    Fixture fixture(2);
    auto args = gelu::make_backward({6}, DType::f32, form, fixture);
    const auto reason = variant.refuse(gelu_backward_op().problem(args), device_for(variant.name));
    tally.add(reason);
    if (!reason.empty()) continue;
    const float x[6] = {nan, 30.0f, -30.0f, 1e30f, -1e30f, 0.0f};
    std::copy(x, x + 6, args.x.as<float>());
    std::fill_n(args.dout.as<float>(), 6, 1.0f);
    run_variant(gelu_backward_op(), variant, args, 1);
    const float* slope = args.dx.as<float>();
    EXPECT_TRUE(std::isnan(slope[0]));
    for (const int i : {1, 3}) EXPECT_EQ(slope[i], 1.0f);
    for (const int i : {2, 4}) EXPECT_NEAR(slope[i], 0.0f, 1e-37f);
    EXPECT_EQ(slope[5], 0.5f);
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST(GeluBackward, CudaLadderIsRightInEveryConfiguration) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  check_configurations(
      gelu_backward_op(),
      [](Fixture& f) { return gelu::make_backward({70001}, DType::f32, Activation::gelu_tanh, f); },
      one_term);
}

// Tensors that do not begin at a multiple of 16 bytes.
TEST_P(Forward, TakesTensorsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = gelu::make_forward({300}, DType::bf16, Activation::gelu_tanh, fixture);
  args.x = args.x.slice(0, 1, 299);
  args.out = args.out.slice(0, 0, 299);
  const auto reason = check_variant(gelu_forward_op(), GetParam(), fixture, args, one_term);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Backward, RepeatsItsBits) {
  Tally tally;
  for (const Activation form : kForms) {
    Fixture fixture(8);
    const auto args = gelu::make_backward({70001}, DType::bf16, form, fixture);
    tally.add(check_repeats(gelu_backward_op(), GetParam(), fixture, args));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

INSTANTIATE_TEST_SUITE_P(Gelu, Forward, ::testing::ValuesIn(variant_names(gelu_forward_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Gelu, Backward, ::testing::ValuesIn(variant_names(gelu_backward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryElementItsBits) {
  for (const Activation form : kForms) {
    Fixture fixture(7);
    const auto args = gelu::make_forward({50000}, DType::bf16, form, fixture);
    const auto reason =
        check_repeated(gelu_forward_op(), GetParam(), fixture, args, one_term, {.beyond = "x"});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

TEST_P(HugeBackward, GivesEveryElementItsBits) {
  for (const Activation form : kForms) {
    Fixture fixture(8);
    const auto args = gelu::make_backward({50000}, DType::bf16, form, fixture);
    const auto reason =
        check_repeated(gelu_backward_op(), GetParam(), fixture, args, one_term, {.beyond = "x"});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Gelu, HugeForward, ::testing::ValuesIn(gpu_variant_names(gelu_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Gelu, HugeBackward, ::testing::ValuesIn(gpu_variant_names(gelu_backward_op())),
                         test_name);

TEST(GeluReference, BackwardIsTheDerivativeOfForward) {
  for (const Activation form : kForms) {
    Fixture fixture(3);
    const auto forward = gelu::make_forward({50}, DType::f64, form, fixture);
    auto backward = gelu::make_backward({50}, DType::f64, form, fixture);
    backward.x = forward.x;
    const auto loss = [&] {
      run_variant(gelu_forward_op(), find_variant(gelu_forward_op(), kReference), forward, 1);
      double total = 0;
      for (int i = 0; i < 50; ++i) total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
      return total;
    };
    run_variant(gelu_backward_op(), find_variant(gelu_backward_op(), kReference), backward, 1);
    check_gradient(loss, forward.x, backward.dx, "dx");
  }
}

TEST(Gelu, WorksInPlace) {
  Fixture fixture(4);
  Context context{ContextOptions{}};
  const auto apart = gelu::make_forward({100}, DType::f32, Activation::gelu_tanh, fixture);
  const auto back = gelu::make_backward({100}, DType::f32, Activation::gelu_tanh, fixture);
  gelu_forward(context, apart);
  gelu_backward(context, back);
  const auto wanted = elements_of(apart.out), wanted_dx = elements_of(back.dx);
  gelu_forward(context, {apart.x, apart.x, apart.activation});
  gelu_backward(context, {back.dout, back.x, back.dout, back.activation});
  EXPECT_EQ(elements_of(apart.x), wanted);
  EXPECT_EQ(elements_of(back.dout), wanted_dx);
}

TEST(Gelu, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto args = gelu::make_forward({40}, DType::f32, Activation::gelu_erf, fixture);
  auto wrong = args;
  wrong.activation = Activation::none;
  EXPECT_THROW(gelu_forward(context, wrong), Error);
  wrong = args;
  wrong.out = fixture.output(DType::f32, {39});
  EXPECT_THROW(gelu_forward(context, wrong), Error);
  wrong = args;
  wrong.out = fixture.output(DType::bf16, {40});
  EXPECT_THROW(gelu_forward(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
