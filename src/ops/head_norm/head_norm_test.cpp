#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/head_norm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace
using head_norm::Case;

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

// A head's sum has HS terms, and a weight's gradient has one for each row and head.
ReductionLength reductions(const Case& c) {
  return [c](std::string_view argument) {
    const bool of_weight = argument == "dq_weight" || argument == "dk_weight";
    return static_cast<double>(of_weight ? std::max<std::int64_t>(c.N * c.heads(), 1) : c.HS);
  };
}

// Calls test(case, dtype, fixture) for all of them.
template <class Args, class F>
void for_each_case(const Op<Args>& op, std::string_view variant, const F& test) {
  Tally tally;
  for (const auto& c : taken(head_norm::test_cases())) {
    for (const DType dtype : dtypes_for(op, variant)) {
      Fixture fixture(static_cast<std::uint64_t>(c.HS * 1009 + c.N));
      tally.add(test(c, dtype, fixture));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Forward, MatchesTheReference) {
  for_each_case(head_norm_forward_op(), GetParam(), [](const Case& c, DType dtype, Fixture& f) {
    const auto args = head_norm::make_forward(c, dtype, f);
    return check_variant(head_norm_forward_op(), GetParam(), f, args, reductions(c));
  });
}

TEST_P(Forward, WithoutStatisticsMatchesTheReference) {
  Tally tally;
  for (const bool in_place : {false, true}) {
    Fixture fixture(2);
    const Case c{11, 4, 2, 48, head_norm::Place::product, in_place};
    const auto args = head_norm::make_forward(c, DType::bf16, fixture, false);
    tally.add(check_variant(head_norm_forward_op(), GetParam(), fixture, args, reductions(c)));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, MatchesTheReference) {
  for_each_case(head_norm_backward_op(), GetParam(), [](const Case& c, DType dtype, Fixture& f) {
    const auto args = head_norm::make_backward(c, dtype, f);
    return check_variant(head_norm_backward_op(), GetParam(), f, args, reductions(c));
  });
}

TEST_P(Backward, AddsToTheWeightsGradients) {
  Tally tally;
  for (const Case& c : {Case{0, 2, 1, 40}, Case{37, 16, 8, 128}, Case{70, 3, 1, 9}}) {
    for (const DType dtype : dtypes_for(head_norm_backward_op(), GetParam())) {
      Fixture fixture(3);
      const auto args = head_norm::make_backward(c, dtype, fixture, Store::add);
      tally.add(check_variant(head_norm_backward_op(), GetParam(), fixture, args, reductions(c)));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// Heads or weights that do not begin at multiples of 16 bytes.
TEST_P(Forward, TakesTensorsThatAreNotAligned) {
  Tally tally;
  const Case c{6, 3, 2, 64};
  for (const DType dtype : dtypes_for(head_norm_forward_op(), GetParam())) {
    for (int which = 0; which < 4; ++which) {
      Fixture fixture(6);
      auto args = head_norm::make_forward(c, dtype, fixture);
      if (which == 0) args.x = fixture.random(dtype, {6, 5, 65}).slice(2, 0, 64);
      if (which == 1) {
        args.x = fixture.random(dtype, {6 * 5 * 64 + 1}).slice(0, 1, 6 * 5 * 64).view({6, 5, 64});
      }
      if (which == 2) args.out = fixture.output(dtype, {6, 5, 67}).slice(2, 1, 64);
      if (which == 3) args.k_weight = fixture.random(DType::f32, {65}).slice(0, 1, 64);
      EXPECT_FALSE(args.problem().aligned);
      tally.add(check_variant(head_norm_forward_op(), GetParam(), fixture, args, reductions(c)));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, TakesTensorsThatAreNotAligned) {
  Tally tally;
  const Case c{6, 3, 2, 64};
  for (const DType dtype : dtypes_for(head_norm_backward_op(), GetParam())) {
    for (int which = 0; which < 3; ++which) {
      Fixture fixture(6);
      auto args = head_norm::make_backward(c, dtype, fixture);
      if (which == 0) args.x = fixture.random(dtype, {6, 5, 65}).slice(2, 0, 64);
      if (which == 1) args.dx = fixture.output(dtype, {6, 5, 67}).slice(2, 1, 64);
      if (which == 2) args.q_weight = fixture.random(DType::f32, {65}).slice(0, 1, 64);
      EXPECT_FALSE(args.problem().aligned);
      tally.add(check_variant(head_norm_backward_op(), GetParam(), fixture, args, reductions(c)));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// A head of zeros stays 0 because of eps, and a head with a NaN does not touch the others.
TEST_P(Forward, TakesHeadsOfZerosAndOfNaN) {
  Fixture fixture(12);
  const auto args = head_norm::make_forward({1, 2, 1, 24}, DType::f32, fixture);
  float* x = args.x.as<float>();
  std::fill(x, x + 24, 0.0f);
  x[30] = std::numeric_limits<float>::quiet_NaN();
  const auto& variant = find_variant(head_norm_forward_op(), GetParam());
  if (auto reason = variant.refuse(args.problem(), device_for(variant.name)); !reason.empty())
    GTEST_SKIP() << reason;
  run_variant(head_norm_forward_op(), variant, args, 1);
  EXPECT_NEAR(args.rstd.as<float>()[0], 1000, 1e-3);  // 1/√eps
  for (int i = 0; i < 3 * 24; ++i) {
    EXPECT_EQ(std::isnan(args.out.as<float>()[i]), i / 24 == 1) << i;
  }
  for (int i = 0; i < 24; ++i) EXPECT_EQ(args.out.as<float>()[i], 0) << i;
}

TEST_P(Backward, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = head_norm::make_backward({300, 6, 2, 64}, DType::bf16, fixture);
  const auto reason = check_repeats(head_norm_backward_op(), GetParam(), fixture, args, 30);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(HeadNorm, Forward, ::testing::ValuesIn(variant_names(head_norm_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(HeadNorm, Backward, ::testing::ValuesIn(variant_names(head_norm_backward_op())),
                         test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryHeadItsBits) {
  for (const std::int64_t HS : {128, 126}) {
    Fixture fixture(7);
    const Case c{101, 12, 6, HS};
    const auto args = head_norm::make_forward(c, DType::bf16, fixture);
    const auto reason = check_repeated(head_norm_forward_op(), GetParam(), fixture, args, reductions(c),
                                       {.beyond = "x", .once = {"q_weight", "k_weight"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

TEST_P(HugeBackward, GivesEveryHeadItsBitsAndSumsThemAll) {
  for (const std::int64_t HS : {128, 126}) {
    Fixture fixture(9);
    const Case c{101, 12, 6, HS};
    const auto args = head_norm::make_backward(c, DType::bf16, fixture, Store::add);
    const auto reason = check_repeated(
        head_norm_backward_op(), GetParam(), fixture, args, reductions(c),
        {.beyond = "x", .once = {"q_weight", "k_weight", "dq_weight", "dk_weight"}, .exact_sums = true});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(HeadNorm, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(head_norm_forward_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(HeadNorm, HugeBackward,
                         ::testing::ValuesIn(gpu_variant_names(head_norm_backward_op())), test_name);

TEST(HeadNormReference, BackwardIsTheDerivativeOfForward) {
  for (const std::int64_t HS : {1, 7}) {
    Fixture fixture(3);
    const Case c{4, 2, 1, HS};
    auto forward = head_norm::make_forward(c, DType::f64, fixture);
    forward.eps = 0.1;  // heads of one element have a gradient, too
    auto backward = head_norm::make_backward(c, DType::f64, fixture);
    backward.x = forward.x;
    backward.q_weight = forward.q_weight;
    backward.k_weight = forward.k_weight;
    backward.rstd = forward.rstd;
    const auto loss = [&] {
      run_variant(head_norm_forward_op(), find_variant(head_norm_forward_op(), kReference), forward, 1);
      double total = 0;
      for (std::int64_t i = 0; i < c.N * c.heads() * HS; ++i)
        total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
      return total;
    };
    loss();  // rstd
    run_variant(head_norm_backward_op(), find_variant(head_norm_backward_op(), kReference), backward, 1);
    check_gradient(loss, forward.x, backward.dx, "dx");
    check_gradient(loss, forward.q_weight, backward.dq_weight, "dq_weight");
    check_gradient(loss, forward.k_weight, backward.dk_weight, "dk_weight");
  }
}

// The heads of v in a product are not touched.
TEST(HeadNorm, NormalizesTheHeadsOfAProductInPlace) {
  constexpr std::int64_t kN = 7, kQ = 6, kK = 2, HS = 32;
  Fixture fixture(1);
  Context context{ContextOptions{}};
  const auto apart =
      head_norm::make_forward({kN, kQ, kK, HS, head_norm::Place::product}, DType::bf16, fixture);
  Tensor product = apart.x;  // (N, H, HS), of which x is the first heads
  product.shape = {kN, kQ + 2 * kK, HS};
  const std::vector<double> v = elements_of(product.slice(1, kQ + kK, kK));
  head_norm_forward(context, apart);
  auto together = apart;
  together.out = together.x;
  head_norm_forward(context, together);
  EXPECT_EQ(elements_of(together.out), elements_of(apart.out));
  EXPECT_EQ(elements_of(product.slice(1, kQ + kK, kK)), v);
}

TEST(HeadNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto right = head_norm::make_forward({4, 2, 1, 20}, DType::bf16, fixture);
  head_norm_forward(context, right);
  const auto refuses = [&](auto change) {
    auto args = right;
    change(args);
    EXPECT_THROW(head_norm_forward(context, args), Error);
  };
  refuses([&](auto& a) { a.x = fixture.random(DType::bf16, {4, 60}); });
  refuses([&](auto& a) { a.x = fixture.random(DType::f32, {4, 3, 20}); });
  refuses([&](auto& a) { a.x = a.out = fixture.random_integers({4, 3, 20}, 0, 9); });
  refuses([&](auto& a) { a.out = fixture.output(DType::bf16, {4, 3, 16}); });
  refuses([&](auto& a) { a.out = {}; });
  refuses([&](auto& a) { a.x.strides = {60, 1, 3}; });     // last stride
  refuses([&](auto& a) { a.out.strides = {60, 19, 1}; });  // heads overlap
  refuses([&](auto& a) { a.out.strides = {59, 20, 1}; });  // rows overlap
  refuses([&](auto& a) { a.out.strides = {0, 20, 1}; });   // all rows in one place
  refuses([&](auto& a) {
    a.out = a.x;
    a.out.strides = {20, 80, 1};
  });  // in place, with other strides
  refuses([&](auto& a) { a.q_weight = fixture.random(DType::bf16, {20}); });
  refuses([&](auto& a) { a.k_weight = fixture.random(DType::f32, {19}); });
  refuses([&](auto& a) { a.k_weight = {}; });
  refuses([&](auto& a) { a.rstd = fixture.output(DType::f32, {4, 2}); });
  refuses([&](auto& a) { a.rstd = fixture.output(DType::bf16, {4, 3}); });
  for (const std::int64_t q_heads : {-1, 0, 3}) refuses([&](auto& a) { a.q_heads = q_heads; });
  const auto long_heads = head_norm::make_forward({4, 2, 1, 257}, DType::f32, fixture);
  EXPECT_THROW(head_norm_forward(context, long_heads), Error);

  const auto back = head_norm::make_backward({4, 2, 1, 20}, DType::bf16, fixture);
  head_norm_backward(context, back);
  const auto refuses_back = [&](auto change) {
    auto args = back;
    change(args);
    EXPECT_THROW(head_norm_backward(context, args), Error);
  };
  refuses_back([&](auto& a) { a.x = {}; });
  refuses_back([&](auto& a) { a.x = fixture.random(DType::bf16, {4, 3, 21}); });
  refuses_back([&](auto& a) { a.dx = fixture.output(DType::bf16, {4, 3, 21}); });
  refuses_back([&](auto& a) { a.rstd = {}; });
  refuses_back([&](auto& a) { a.dq_weight = {}; });
  refuses_back([&](auto& a) { a.dk_weight = fixture.output(DType::bf16, {20}); });
  refuses_back([&](auto& a) { a.q_heads = 3; });
}

}  // namespace
}  // namespace warpwright::ops
