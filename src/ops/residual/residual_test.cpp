#include <gtest/gtest.h>

#include "ops/residual/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

double one_term(std::string_view) {
  return 1;
}

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(residual::test_cases())) {
    for (const DType dtype : dtypes_for(residual_forward_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.elements));
      const auto args = residual::make_forward(c, dtype, fixture);
      tally.add(check_variant(residual_forward_op(), GetParam(), fixture, args, one_term));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(residual::test_cases())) {
    for (const DType dtype : dtypes_for(residual_backward_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.elements));
      const auto args = residual::make_backward(c, dtype, fixture);
      tally.add(check_variant(residual_backward_op(), GetParam(), fixture, args, one_term));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// Tensors that do not begin at a multiple of 16 bytes.
TEST_P(Forward, TakesTensorsThatAreNotAligned) {
  Fixture fixture(4);
  auto args = residual::make_forward({300}, DType::bf16, fixture);
  args.a = args.a.slice(0, 1, 299);
  args.b = args.b.slice(0, 0, 299);
  args.out = args.out.slice(0, 0, 299);
  const auto reason = check_variant(residual_forward_op(), GetParam(), fixture, args, one_term);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Backward, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = residual::make_backward({70001}, DType::bf16, fixture);
  const auto reason = check_repeats(residual_backward_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(Residual, Forward, ::testing::ValuesIn(variant_names(residual_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Residual, Backward, ::testing::ValuesIn(variant_names(residual_backward_op())),
                         test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryElementItsBits) {
  Fixture fixture(5);
  const auto args = residual::make_forward({50000}, DType::bf16, fixture);
  const auto reason =
      check_repeated(residual_forward_op(), GetParam(), fixture, args, one_term, {.beyond = "a"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeBackward, GivesEveryElementItsBits) {
  Fixture fixture(6);
  const auto args = residual::make_backward({50000}, DType::bf16, fixture);
  const auto reason =
      check_repeated(residual_backward_op(), GetParam(), fixture, args, one_term, {.beyond = "dout"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Residual, HugeForward, ::testing::ValuesIn(gpu_variant_names(residual_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Residual, HugeBackward,
                         ::testing::ValuesIn(gpu_variant_names(residual_backward_op())), test_name);

TEST(ResidualReference, BackwardIsTheDerivativeOfForward) {
  Fixture fixture(1);
  const auto forward = residual::make_forward({31}, DType::f64, fixture);
  const auto dout = fixture.random(DType::f64, {31});
  const auto da = fixture.random(DType::f64, {31}, 0), db = fixture.random(DType::f64, {31}, 0);
  const auto loss = [&] {
    run_variant(residual_forward_op(), find_variant(residual_forward_op(), kReference), forward, 1);
    double total = 0;
    for (int i = 0; i < 31; ++i) total += forward.out.as<double>()[i] * dout.as<double>()[i];
    return total;
  };
  run_variant(residual_backward_op(), find_variant(residual_backward_op(), kReference),
              ResidualBackward{dout, da, db}, 1);
  check_gradient(loss, forward.a, da, "da");
  check_gradient(loss, forward.b, db, "db");
}

TEST(Residual, WorksInPlace) {
  Fixture fixture(2);
  Context context{ContextOptions{}};
  const auto args = residual::make_forward({100}, DType::f32, fixture);
  residual_forward(context, args);
  const auto wanted = elements_of(args.out);
  residual_forward(context, {args.a, args.b, args.b});
  EXPECT_EQ(elements_of(args.b), wanted);
}

TEST(Residual, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = residual::make_forward({40}, DType::f32, fixture);
  auto wrong = args;
  wrong.b = fixture.random(DType::f32, {5, 8});
  EXPECT_THROW(residual_forward(context, wrong), Error);
  wrong = args;
  wrong.out = fixture.output(DType::bf16, {40});
  EXPECT_THROW(residual_forward(context, wrong), Error);
  wrong = args;
  wrong.a = {};
  EXPECT_THROW(residual_forward(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
