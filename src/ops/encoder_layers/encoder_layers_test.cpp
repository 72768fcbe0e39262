#include "ops/encoder_layers/encoder_layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/encoder_layers/cases.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Forward : public ::testing::TestWithParam<std::string> {};

// The elements of the rows that the sequences have.
std::vector<double> states_of(const EncoderLayersForward& a) {
  return elements_of(a.out.slice(0, 0, a.rows.as<std::int32_t>()[0]));
}

// Layers hand their roundings on to the next: what is held against is twice the error of the formulas one by
// one in the same dtype, and an ulp.
TEST_P(Forward, ErrsNoMoreThanTheFormulasOneByOne) {
  const auto& op = encoder_layers_forward_op();
  std::string refusal;
  int checked = 0;
  std::uint64_t seed = 0;
  for (const auto& c : encoder_layers::test_cases()) {
    for (const DType dtype : dtypes_for(GetParam())) {
      Fixture fixture(++seed), twin_fixture(0);
      const auto args = encoder_layers::make_forward(c, dtype, fixture);
      const auto problem = op.problem(args);
      SCOPED_TRACE(problem.describe());
      refusal = find_variant(op, GetParam()).refuse(problem, device_for(GetParam()));
      if (!refusal.empty()) continue;
      fixture.snapshot();
      const auto exact = fp64_twin(args, twin_fixture);
      run_variant(op, find_variant(op, kReference), exact, 1);
      run_variant(op, find_variant(op, kReference), args, 1);
      const std::vector<double> expected = states_of(exact), plain = states_of(args);
      fixture.restore();
      run_variant(op, find_variant(op, GetParam()), args, 1);
      const Deviation error = compare(states_of(args), expected, dtype),
                      allowed = compare(plain, expected, dtype);
      EXPECT_EQ(error.not_finite, 0);
      EXPECT_LE(error.relative, 2 * allowed.relative + tolerance(dtype, 1));
      EXPECT_LE(error.worst, 4 * allowed.worst + 16 * tolerance(dtype, 1));
      expect_only_written(fixture, uses_of(args));
      const std::vector<double> first = states_of(args);
      fixture.restore();
      run_variant(op, find_variant(op, GetParam()), args, 1);
      EXPECT_EQ(states_of(args), first) << "two runs differ";
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A text's bits are those that it has alone.
TEST_P(Forward, TextsDoNotSeeEachOther) {
  const auto& op = encoder_layers_forward_op();
  const encoder_layers::Case together{128, 2, 256, 2, {7, 40, 25}};
  Fixture fixture(5), alone_fixture(6);
  const auto args = encoder_layers::make_forward(together, DType::f16, fixture);
  const auto& variant = find_variant(op, GetParam());
  const std::string refusal = variant.refuse(op.problem(args), device_for(GetParam()));
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  run_variant(op, variant, args, 1);
  EncoderLayersForward alone = args;
  alone.hidden = args.hidden.slice(0, 47, 25);
  alone.cu_seqlens = alone_fixture.integers({0, 25});
  alone.rows = alone_fixture.integers({25});
  alone.out = alone_fixture.output(DType::f16, {25, 128});
  run_variant(op, variant, alone, 1);
  EXPECT_EQ(elements_of(alone.out), elements_of(args.out.slice(0, 47, 25)));
}

TEST_P(Forward, InPlace) {
  const auto& op = encoder_layers_forward_op();
  Fixture fixture(7);
  auto args = encoder_layers::make_forward({128, 4, 192, 2, {50}}, DType::bf16, fixture);
  const auto& variant = find_variant(op, GetParam());
  const std::string refusal = variant.refuse(op.problem(args), device_for(GetParam()));
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  run_variant(op, variant, args, 1);
  const auto expected = elements_of(args.out);
  args.out = args.hidden;
  run_variant(op, variant, args, 1);
  EXPECT_EQ(elements_of(args.out), expected);
}

#if WARPWRIGHT_CUDA
INSTANTIATE_TEST_SUITE_P(EncoderLayers, Forward,
                         ::testing::ValuesIn(variant_names(encoder_layers_forward_op())), test_name);
#else
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Forward);
#endif

// One token sees itself alone: its attention is its value.
TEST(EncoderLayersReference, OfOneToken) {
  Fixture fixture(1);
  auto args = encoder_layers::make_forward({4, 2, 3, 1, {1}}, DType::f64, fixture);
  const auto& op = encoder_layers_forward_op();
  run_variant(op, find_variant(op, kReference), args, 1);
  const auto first = elements_of(args.out);
  EncoderLayer& layer = args.layers[0];
  for (std::int64_t i = 0; i < 2 * 4 * 4; ++i) layer.qkv_weight.as<double>()[i] = 0;  // of q and k
  run_variant(op, find_variant(op, kReference), args, 1);
  EXPECT_EQ(elements_of(args.out), first);
  double mean = 0, square = 0;
  for (std::int64_t c = 0; c < 4; ++c) {
    const double x = (first[static_cast<std::size_t>(c)] - layer.outnorm_bias.as<double>()[c]) /
                     layer.outnorm_weight.as<double>()[c];
    mean += x / 4, square += x * x / 4;
  }
  EXPECT_NEAR(mean, 0, 1e-12);
  EXPECT_NEAR(square, 1, 1e-9);
}

TEST(EncoderLayers, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = encoder_layers::make_forward({8, 2, 16, 2, {3}}, DType::f32, fixture);
  const auto expect_refused = [&](auto&& change) {
    EncoderLayersForward wrong = args;
    change(wrong);
    EXPECT_THROW(encoder_layers_forward_op().problem(wrong), Error);
  };
  expect_refused([&](auto& a) { a.layers.clear(); });
  expect_refused([&](auto& a) { a.heads = 3; });
  expect_refused([&](auto& a) { a.layers[1].fc_weight = a.layers[0].qkv_weight; });
  expect_refused([&](auto& a) { a.layers[1].outnorm_bias = fixture.random(DType::f32, {7}); });
  expect_refused([&](auto& a) { a.layers[0].proj_weight = fixture.random(DType::bf16, {8, 8}); });
  expect_refused([&](auto& a) { a.rows = fixture.integers({1, 2}); });
  expect_refused([&](auto& a) { a.cu_seqlens = fixture.random(DType::f32, {2}); });
  EXPECT_FALSE(encoder_layers_are_offered(context, encoder_layers_forward_op().problem(args)));
}

}  // namespace
}  // namespace warpwright::ops
