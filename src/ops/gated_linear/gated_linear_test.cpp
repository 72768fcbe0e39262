#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "ops/gated_linear/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};
class Dx : public testing::VariantTest {};

// The terms of a gradient's or a result's sum.
ReductionLength terms(const gated_linear::Case& c) {
  return [&](std::string_view) { return static_cast<double>(c.C); };
}

// All activations for a small case, and one for a large one: the oracle takes long.
std::vector<GateActivation> activations_for(const gated_linear::Case& c) {
  if (c.M * c.F * c.C > 2'000'000) return {GateActivation::silu};
  return {std::begin(kGateActivations), std::end(kGateActivations)};
}

void expect_near(const Tensor& result, const Tensor& exact, double terms, std::string_view name) {
  const Deviation error = compare(elements_of(result), elements_of(exact), result.dtype);
  const double bound = tolerance(result.dtype, terms);
  EXPECT_EQ(error.not_finite, 0) << name;
  EXPECT_LE(error.relative, bound) << name;
  EXPECT_LE(error.worst, 16 * bound) << name;
}

// The oracle of gate_up is the product's. out is rounded three times, as gate, as up and as their product, so
// its oracle is the gate's, given the gate and up that the variant has stored.
void expect_forward(const GatedForward& args) {
  Fixture fixture(0);
  MatmulForward product = gated_linear::product_of(args);
  product.out = fixture.output(product.out.dtype, product.out.shape);
  const MatmulForward exact = fp64_twin(product, fixture);
  run_variant(matmul_forward_op(), find_variant(matmul_forward_op(), kReference), exact, 1);
  expect_near(args.gate_up, exact.out, static_cast<double>(args.x.shape[1]), "gate_up");
  const GateForward gate = fp64_twin(gated_linear::gate_of(args), fixture);
  run_variant(gate_forward_op(), find_variant(gate_forward_op(), kReference), gate, 1);
  expect_near(args.out, gate.out, 1, "out");
}

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  const auto& variant = find_variant(gated_forward_op(), GetParam());
  for (const auto& c : taken(gated_linear::test_cases())) {
    for (const DType dtype : dtypes_for(gated_forward_op(), GetParam())) {
      for (const GateActivation form : activations_for(c)) {
        for (const bool bias : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 31 + c.F));
          const auto args = gated_linear::make_forward(c, dtype, form, fixture, bias);
          SCOPED_TRACE(args.problem().describe());
          const auto reason = variant.refuse(args.problem(), device_for(variant.name));
          tally.add(reason);
          if (!reason.empty() || too_long(args.problem().flops())) continue;
          fixture.snapshot();
          run_variant(gated_forward_op(), variant, args, 1);
          expect_only_written(fixture, uses_of(args));
          expect_forward(args);
        }
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Dx, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(gated_linear::test_cases())) {
    for (const DType dtype : dtypes_for(gated_dx_op(), GetParam())) {
      for (const GateActivation form : activations_for(c)) {
        for (const bool out : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 37 + c.F));
          const auto args = gated_linear::make_dx(c, dtype, form, fixture, out);
          tally.add(check_variant(gated_dx_op(), GetParam(), fixture, args, terms(c)));
        }
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// The gate's kernel, given gate_up, has the bits of out; so the product's rounded results were used.
TEST_P(Forward, OutHasTheBitsOfTheGateAlone) {
  const std::string name = GetParam();
  const std::string_view device = std::string_view(name).substr(0, name.find('.'));
  Tally tally;
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(5);
    const auto args = gated_linear::make_forward({300, 200, 136}, DType::bf16, form, fixture);
    const auto& variant = find_variant(gated_forward_op(), name);
    tally.add(variant.refuse(args.problem(), device_for(name)));
    if (tally.none()) continue;
    run_variant(gated_forward_op(), variant, args, 1);
    const auto out = elements_of(args.out);
    const GateForward gate = gated_linear::gate_of(args);
    const auto choice = choose(device_for(name), gate_forward_op(), gate.problem());
    EXPECT_TRUE(choice.variant->name.starts_with(device));
    run_variant(gate_forward_op(), *choice.variant, gate, 1);
    EXPECT_EQ(out, elements_of(args.out)) << name_of(form);
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// A backward that is given the forward's gate_up computes the forward's out again, bit by bit.
TEST_P(Dx, OutHasTheForwardsBits) {
  Tally tally;
  for (const GateActivation form : kGateActivations) {
    for (const std::int64_t F : {200, 520}) {
      Fixture fixture(6);
      const auto forward = gated_linear::make_forward({300, F, 136}, DType::bf16, form, fixture);
      auto dx = gated_linear::make_dx({300, F, 136}, DType::bf16, form, fixture, true);
      const auto& variant = find_variant(gated_dx_op(), GetParam());
      tally.add(variant.refuse(dx.problem(), device_for(variant.name)));
      if (tally.none()) continue;
      run_variant(gated_forward_op(), find_variant(gated_forward_op(), GetParam()), forward, 1);
      dx.gate_up = forward.gate_up;
      run_variant(gated_dx_op(), variant, dx, 1);
      EXPECT_EQ(elements_of(dx.out), elements_of(forward.out)) << name_of(form);
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// out may be asked for or not: the gradients have the same bits.
TEST_P(Dx, GradientsDoNotDependOnOut) {
  const auto& variant = find_variant(gated_dx_op(), GetParam());
  Fixture fixture(7), other(7);
  const auto without = gated_linear::make_dx({300, 264, 72}, DType::bf16, GateActivation::silu, fixture);
  const auto with = gated_linear::make_dx({300, 264, 72}, DType::bf16, GateActivation::silu, other, true);
  if (const auto reason = variant.refuse(with.problem(), device_for(variant.name)); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(gated_dx_op(), variant, without, 1);
  run_variant(gated_dx_op(), variant, with, 1);
  EXPECT_EQ(elements_of(without.gate_up), elements_of(with.gate_up));
}

// A weight of one column makes gate and up what the test asks for.
TEST_P(Forward, FarTailsAndNaN) {
  const auto& variant = find_variant(gated_forward_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t kF = 8, kDepth = 8;
  const float gates[kF] = {nan, 1e4f, -1e4f, 1e30f, -1e30f, 0, -100, 100};
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(2);
    const auto args = gated_linear::make_forward({3, kF, kDepth}, DType::bf16, form, fixture);
    if (auto reason = variant.refuse(args.problem(), device_for(variant.name)); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    std::fill_n(args.x.as<bf16>(), 3 * kDepth, bf16(0.0f));
    for (int row = 0; row < 3; ++row) args.x.as<bf16>()[row * kDepth] = bf16(1.0f);
    for (int i = 0; i < kF; ++i) {
      args.weight.as<bf16>()[i * kDepth] = bf16(gates[i]);
      args.weight.as<bf16>()[(kF + i) * kDepth] = bf16(1.0f);
    }
    run_variant(gated_forward_op(), variant, args, 1);
    const auto out = elements_of(args.out), gate_up = elements_of(args.gate_up);
    EXPECT_TRUE(std::isnan(out[0]));
    for (const std::size_t i : {1u, 3u, 7u}) EXPECT_EQ(out[i], gate_up[i]);
    for (const std::size_t i : {2u, 4u, 5u}) EXPECT_EQ(out[i], 0) << name_of(form);
    EXPECT_NEAR(out[6], 0, 1e-30);
  }
}

TEST_P(Dx, FarTailsAndNaN) {
  const auto& variant = find_variant(gated_dx_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t kF = 8, kDepth = 8;
  const float gates[kF] = {nan, 1e4f, -1e4f, 1e30f, -1e30f, 0, -200, 200};
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(2);
    const auto args = gated_linear::make_dx({1, kF, kDepth}, DType::bf16, form, fixture);
    if (auto reason = variant.refuse(args.problem(), device_for(variant.name)); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    std::fill_n(args.dout.as<bf16>(), kDepth, bf16(0.0f));
    args.dout.as<bf16>()[0] = bf16(1.0f);
    for (int i = 0; i < kF; ++i) {
      args.weight.as<bf16>()[i] = bf16(1.0f);
      args.gate_up.as<bf16>()[i] = bf16(gates[i]);
      args.gate_up.as<bf16>()[kF + i] = bf16(1.0f);
    }
    const auto gate_up = elements_of(args.gate_up);
    run_variant(gated_dx_op(), variant, args, 1);
    const auto d = elements_of(args.gate_up);
    EXPECT_TRUE(std::isnan(d[0]) && std::isnan(d[kF]));
    for (const std::size_t i : {1u, 3u, 7u}) {
      EXPECT_EQ(d[i], 1) << name_of(form);
      EXPECT_EQ(d[kF + i], gate_up[i]);
    }
    for (const std::size_t i : {2u, 4u, 6u}) {
      EXPECT_NEAR(d[i], 0, 1e-30) << name_of(form);
      EXPECT_EQ(d[kF + i], 0) << name_of(form);
    }
    EXPECT_EQ(d[5], 0.5);
  }
}

TEST_P(Dx, RepeatsItsBits) {
  Tally tally;
  for (const bool out : {false, true}) {
    Fixture fixture(8);
    const auto args =
        gated_linear::make_dx({1500, 1000, 136}, DType::bf16, GateActivation::silu, fixture, out);
    tally.add(check_repeats(gated_dx_op(), GetParam(), fixture, args));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Forward, RepeatsItsBits) {
  Fixture fixture(9);
  const auto args = gated_linear::make_forward({1500, 1000, 136}, DType::bf16, GateActivation::silu, fixture);
  const auto reason = check_repeats(gated_forward_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(GatedLinear, Forward, ::testing::ValuesIn(variant_names(gated_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(GatedLinear, Dx, ::testing::ValuesIn(variant_names(gated_dx_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeDx : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(7);
  const auto args = gated_linear::make_forward({100, 256, 64}, DType::bf16, GateActivation::silu, fixture);
  const auto reason =
      check_repeated(gated_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 64.0; },
                     {.beyond = "gate_up", .once = {"weight"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}
TEST_P(HugeDx, GivesEveryRowItsBits) {
  Fixture fixture(8);
  const auto args = gated_linear::make_dx({100, 256, 64}, DType::bf16, GateActivation::silu, fixture);
  const auto reason =
      check_repeated(gated_dx_op(), GetParam(), fixture, args, [](std::string_view) { return 64.0; },
                     {.beyond = "gate_up", .once = {"weight"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(GatedLinear, HugeForward, ::testing::ValuesIn(gpu_variant_names(gated_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeDx);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(GatedLinear, HugeDx, ::testing::ValuesIn(gpu_variant_names(gated_dx_op())),
                         test_name);

TEST(GatedLinearReference, DxIsTheDerivativeOfForward) {
  for (const GateActivation form : kGateActivations) {
    Fixture fixture(3);
    const auto forward = gated_linear::make_forward({4, 5, 3}, DType::f64, form, fixture);
    run_variant(gated_forward_op(), find_variant(gated_forward_op(), kReference), forward, 1);
    auto dx = gated_linear::make_dx({4, 5, 6}, DType::f64, form, fixture);
    // The loss is Σ out·W'·dout over what follows out: its gradient with respect to out is dout·W.
    const GateForward gate{.gate_up = fixture.random(DType::f64, {4, 10}),
                           .out = fixture.output(DType::f64, {4, 5}),
                           .activation = form};
    std::copy_n(gate.gate_up.as<double>(), 40, dx.gate_up.as<double>());
    const auto loss = [&] {
      run_variant(gate_forward_op(), find_variant(gate_forward_op(), kReference), gate, 1);
      double total = 0;
      for (int row = 0; row < 4; ++row) {
        for (int c = 0; c < 6; ++c) {
          double next = 0;
          for (int f = 0; f < 5; ++f)
            next += gate.out.as<double>()[row * 5 + f] * dx.weight.as<double>()[c * 5 + f];
          total += next * dx.dout.as<double>()[row * 6 + c];
        }
      }
      return total;
    };
    run_variant(gated_dx_op(), find_variant(gated_dx_op(), kReference), dx, 1);
    check_gradient(loss, gate.gate_up, dx.gate_up, "gate_up");
  }
}

TEST(GatedLinear, RefusesTensorsThatDoNotFit) {
  Fixture fixture(4);
  auto forward = gated_linear::make_forward({4, 8, 16}, DType::f32, GateActivation::silu, fixture);
  forward.out = fixture.output(DType::f32, {4, 16});
  EXPECT_THROW(forward.problem(), Error);
  auto dx = gated_linear::make_dx({4, 8, 16}, DType::f32, GateActivation::silu, fixture);
  dx.gate_up = fixture.output(DType::f32, {4, 15});
  EXPECT_THROW(dx.problem(), Error);
  dx.gate_up = fixture.output(DType::f32, {5, 16});
  EXPECT_THROW(dx.problem(), Error);
}

// A kernel that is forced for the product or the gate is used.
TEST(GatedLinear, AForcedKernelOfAPartIsUsed) {
  Fixture fixture = Fixture::of_shapes();
  const auto args = gated_linear::make_forward({256, 96, 64}, DType::bf16, GateActivation::silu, fixture);
  DeviceInfo device = device_info(Device{});
  const ForcedChoices forced{{"matmul.forward", "reference"}};
  device.forced = &forced;
  const auto choice = choose(device, gated_forward_op(), args.problem());
  EXPECT_NE(choice.text.find("reference"), std::string::npos) << choice.text;
}

}  // namespace
}  // namespace warpwright::ops
