#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/gate/cases.hpp"
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
  for (const auto& c : taken(gate::test_cases())) {
    for (const DType dtype : dtypes_for(gate_forward_op(), GetParam())) {
      for (const GateActivation form : kGateActivations) {
        Fixture fixture(static_cast<std::uint64_t>(c.columns));
        const auto args = gate::make_forward(c, dtype, form, fixture);
        tally.add(check_variant(gate_forward_op(), GetParam(), fixture, args, one_term));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(gate::test_cases())) {
    for (const DType dtype : dtypes_for(gate_backward_op(), GetParam())) {
      for (const GateActivation form : kGateActivations) {
        for (const bool out : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.columns));
          const auto args = gate::make_backward(c, dtype, form, fixture, out);
          tally.add(check_variant(gate_backward_op(), GetParam(), fixture, args, one_term));
        }
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// The bits of a backward in place are those of a backward apart, and its out has those of the forward.
TEST_P(Backward, WorksInPlace) {
  const auto& variant = find_variant(gate_backward_op(), GetParam());
  Tally tally;
  for (const GateActivation form : kGateActivations) {
    for (const std::int64_t columns : {64, 77}) {
      Fixture fixture(4);
      const auto apart = gate::make_backward({5, columns}, DType::bf16, form, fixture, true);
      const GateForward forward{apart.gate_up, fixture.output(DType::bf16, {5, columns}), form};
      const auto reason = variant.refuse(gate_backward_op().problem(apart), device_for(variant.name));
      tally.add(reason);
      if (!reason.empty()) continue;
      run_variant(gate_forward_op(), find_variant(gate_forward_op(), GetParam()), forward, 1);
      run_variant(gate_backward_op(), variant, apart, 1);
      EXPECT_EQ(elements_of(apart.out), elements_of(forward.out)) << name_of(form);
      auto in_place = apart;
      in_place.dgate_up = apart.gate_up, in_place.out = apart.dout;
      run_variant(gate_backward_op(), variant, in_place, 1);
      EXPECT_EQ(elements_of(apart.dout), elements_of(apart.out)) << name_of(form);
      EXPECT_EQ(elements_of(apart.gate_up), elements_of(apart.dgate_up)) << name_of(form);
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Forward, FarTailsAndNaN) {
  const auto& variant = find_variant(gate_forward_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(2);
    const auto args = gate::make_forward({1, 6}, DType::f32, form, fixture);
    if (auto reason = variant.refuse(gate_forward_op().problem(args), device_for(variant.name));
        !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    const float x[6] = {nan, 1e4f, -1e4f, 1e30f, -1e30f, 0.0f};
    std::copy(x, x + 6, args.gate_up.as<float>());
    std::fill_n(args.gate_up.as<float>() + 6, 6, 1.0f);
    run_variant(gate_forward_op(), variant, args, 1);
    const float* out = args.out.as<float>();
    EXPECT_TRUE(std::isnan(out[0]));
    for (const int i : {1, 3}) EXPECT_EQ(out[i], x[i]);
    for (const int i : {2, 4, 5}) EXPECT_EQ(out[i], 0.0f) << name_of(form);
  }
}

TEST_P(Backward, FarTailsAndNaN) {
  const auto& variant = find_variant(gate_backward_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(2);
    const auto args = gate::make_backward({1, 6}, DType::f32, form, fixture);
    if (auto reason = variant.refuse(gate_backward_op().problem(args), device_for(variant.name));
        !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    const float x[6] = {nan, 1e4f, -1e4f, 1e30f, -1e30f, 0.0f};
    std::copy(x, x + 6, args.gate_up.as<float>());
    std::fill_n(args.gate_up.as<float>() + 6, 6, 1.0f);
    std::fill_n(args.dout.as<float>(), 6, 1.0f);
    run_variant(gate_backward_op(), variant, args, 1);
    const float *dgate = args.dgate_up.as<float>(), *dup = dgate + 6;
    EXPECT_TRUE(std::isnan(dgate[0]) && std::isnan(dup[0]));
    for (const int i : {1, 3}) EXPECT_EQ(dgate[i], 1.0f);
    for (const int i : {1, 3}) EXPECT_EQ(dup[i], x[i]);
    for (const int i : {2, 4}) EXPECT_NEAR(dgate[i], 0.0f, 1e-36f);
    for (const int i : {2, 4, 5}) EXPECT_EQ(dup[i], 0.0f) << name_of(form);
    EXPECT_EQ(dgate[5], 0.5f);
  }
}

// Tensors that do not begin at a multiple of 16 bytes.
TEST_P(Forward, TakesTensorsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = gate::make_forward({4, 63}, DType::bf16, GateActivation::silu, fixture);
  args.gate_up = args.gate_up.slice(0, 1, 3);
  args.out = args.out.slice(0, 1, 3);
  EXPECT_FALSE(args.problem().aligned);
  const auto reason = check_variant(gate_forward_op(), GetParam(), fixture, args, one_term);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Backward, RepeatsItsBits) {
  Tally tally;
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(8);
    const auto args = gate::make_backward({7, 9000}, DType::bf16, form, fixture);
    tally.add(check_repeats(gate_backward_op(), GetParam(), fixture, args));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

INSTANTIATE_TEST_SUITE_P(Gate, Forward, ::testing::ValuesIn(variant_names(gate_forward_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Gate, Backward, ::testing::ValuesIn(variant_names(gate_backward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryElementItsBits) {
  for (const std::int64_t columns : {256, 251}) {
    Fixture fixture(7);
    const auto args = gate::make_forward({100, columns}, DType::bf16, GateActivation::silu, fixture);
    const auto reason =
        check_repeated(gate_forward_op(), GetParam(), fixture, args, one_term, {.beyond = "gate_up"});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

TEST_P(HugeBackward, GivesEveryElementItsBits) {
  for (const std::int64_t columns : {256, 251}) {
    Fixture fixture(8);
    const auto args = gate::make_backward({100, columns}, DType::bf16, GateActivation::silu, fixture);
    const auto reason =
        check_repeated(gate_backward_op(), GetParam(), fixture, args, one_term, {.beyond = "gate_up"});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Gate, HugeForward, ::testing::ValuesIn(gpu_variant_names(gate_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Gate, HugeBackward, ::testing::ValuesIn(gpu_variant_names(gate_backward_op())),
                         test_name);

TEST(GateReference, BackwardIsTheDerivativeOfForward) {
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(3);
    const auto forward = gate::make_forward({5, 9}, DType::f64, form, fixture);
    auto backward = gate::make_backward({5, 9}, DType::f64, form, fixture);
    backward.gate_up = forward.gate_up;
    const auto loss = [&] {
      run_variant(gate_forward_op(), find_variant(gate_forward_op(), kReference), forward, 1);
      double total = 0;
      for (int i = 0; i < 45; ++i) total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
      return total;
    };
    run_variant(gate_backward_op(), find_variant(gate_backward_op(), kReference), backward, 1);
    check_gradient(loss, forward.gate_up, backward.dgate_up, "dgate_up");
  }
}

TEST(Gate, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto args = gate::make_forward({4, 10}, DType::f32, GateActivation::silu, fixture);
  auto wrong = args;
  wrong.out = fixture.output(DType::f32, {4, 9});
  EXPECT_THROW(gate_forward(context, wrong), Error);
  wrong = args;
  wrong.out = fixture.output(DType::bf16, {4, 10});
  EXPECT_THROW(gate_forward(context, wrong), Error);
  wrong = args;
  wrong.gate_up = fixture.random(DType::f32, {4, 21});
  EXPECT_THROW(gate_forward(context, wrong), Error);
  wrong = args;
  wrong.gate_up = fixture.random(DType::f32, {80});
  EXPECT_THROW(gate_forward(context, wrong), Error);
  auto back = gate::make_backward({4, 10}, DType::f32, GateActivation::silu, fixture);
  back.dout = fixture.random(DType::f32, {4, 20});
  EXPECT_THROW(gate_backward(context, back), Error);
  back = gate::make_backward({4, 10}, DType::f32, GateActivation::silu, fixture);
  back.out = fixture.output(DType::f32, {4, 20});
  EXPECT_THROW(gate_backward(context, back), Error);
}

}  // namespace
}  // namespace warpwright::ops
