#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "ops/gated_linear/cases.hpp"
#include "ops/testing/hopper.hpp"
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

// A CPU has no tiles, and takes long.
std::vector<gated_linear::Case> cases_for(std::string_view variant) {
  auto cases = gated_linear::test_cases();
  for (const auto& c : gated_linear::large_test_cases()) {
    if (variant.starts_with("cuda.")) cases.push_back(c);
  }
  return taken(cases);
}

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  const auto& variant = find_variant(gated_forward_op(), GetParam());
  for (const auto& c : cases_for(GetParam())) {
    for (const DType dtype : dtypes_for(gated_forward_op(), GetParam())) {
      for (const GateActivation activation : activations_for(c)) {
        for (const bool bias : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 31 + c.F));
          const auto args = gated_linear::make_forward(c, dtype, activation, fixture, bias);
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
  for (const auto& c : cases_for(GetParam())) {
    for (const DType dtype : dtypes_for(gated_dx_op(), GetParam())) {
      for (const GateActivation activation : activations_for(c)) {
        for (const bool out : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 37 + c.F));
          const auto args = gated_linear::make_dx(c, dtype, activation, fixture, out);
          tally.add(check_variant(gated_dx_op(), GetParam(), fixture, args, terms(c)));
        }
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// The gate's own kernel makes the same bits of the same gate and up.
TEST_P(Forward, OutHasTheBitsOfTheGateAlone) {
  const std::string name = GetParam();
  const auto& variant = find_variant(gated_forward_op(), name);
  Tally tally;
  for (const DType dtype : dtypes_for(gated_forward_op(), name)) {
    for (const GateActivation activation : kGateActivations) {
      Fixture fixture(5);
      const auto args = gated_linear::make_forward({300, 200, 136}, dtype, activation, fixture);
      const auto reason = variant.refuse(args.problem(), device_for(name));
      tally.add(reason);
      if (!reason.empty()) continue;
      run_variant(gated_forward_op(), variant, args, 1);
      GateForward gate = gated_linear::gate_of(args);
      gate.out = fixture.output(dtype, gate.out.shape);
      const auto choice = choose(device_for(name), gate_forward_op(), gate.problem());
      run_variant(gate_forward_op(), *choice.variant, gate, 1);
      EXPECT_EQ(elements_of(gate.out), elements_of(args.out)) << name_of(dtype) << ' ' << name_of(activation);
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// A backward that is given the forward's gate_up computes the forward's out again, bit by bit.
TEST_P(Dx, OutHasTheForwardsBits) {
  Tally tally;
  const auto& variant = find_variant(gated_dx_op(), GetParam());
  for (const DType dtype : dtypes_for(gated_dx_op(), GetParam())) {
    for (const GateActivation activation : kGateActivations) {
      Fixture fixture(6);
      const gated_linear::Case c{300, 520, 136};
      const auto forward = gated_linear::make_forward(c, dtype, activation, fixture);
      auto dx = gated_linear::make_dx(c, dtype, activation, fixture, true);
      const auto reason = variant.refuse(dx.problem(), device_for(variant.name));
      tally.add(reason);
      if (!reason.empty()) continue;
      run_variant(gated_forward_op(), find_variant(gated_forward_op(), GetParam()), forward, 1);
      dx.gate_up = forward.gate_up;
      run_variant(gated_dx_op(), variant, dx, 1);
      EXPECT_EQ(elements_of(dx.out), elements_of(forward.out))
          << name_of(dtype) << ' ' << name_of(activation);
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
  for (const GateActivation activation : kGateActivations) {
    Fixture fixture(2);
    const auto args = gated_linear::make_forward({3, kF, kDepth}, DType::bf16, activation, fixture);
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
    for (const std::size_t i : {2u, 4u, 5u}) EXPECT_EQ(out[i], 0) << name_of(activation);
    EXPECT_NEAR(out[6], 0, 1e-30);
  }
}

TEST_P(Dx, FarTailsAndNaN) {
  const auto& variant = find_variant(gated_dx_op(), GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t kF = 8, kDepth = 8;
  const float gates[kF] = {nan, 1e4f, -1e4f, 1e30f, -1e30f, 0, -200, 200};
  for (const GateActivation activation : kGateActivations) {
    Fixture fixture(2);
    const auto args = gated_linear::make_dx({1, kF, kDepth}, DType::bf16, activation, fixture);
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
      EXPECT_EQ(d[i], 1) << name_of(activation);
      EXPECT_EQ(d[kF + i], gate_up[i]);
    }
    for (const std::size_t i : {2u, 4u, 6u}) {
      EXPECT_NEAR(d[i], 0, 1e-30) << name_of(activation);
      EXPECT_EQ(d[kF + i], 0) << name_of(activation);
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
  for (const bool out : {false, true}) {
    Fixture fixture(8);
    const auto args = gated_linear::make_dx({100, 256, 200}, DType::bf16, GateActivation::silu, fixture, out);
    const auto reason =
        check_repeated(gated_dx_op(), GetParam(), fixture, args, [](std::string_view) { return 200.0; },
                       {.beyond = "gate_up", .once = {"weight"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(GatedLinear, HugeForward, ::testing::ValuesIn(gpu_variant_names(gated_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeDx);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(GatedLinear, HugeDx, ::testing::ValuesIn(gpu_variant_names(gated_dx_op())),
                         test_name);

// The loss is Σ (out·Wᵀ)·dout, whose gradient with respect to out is dout·W.
TEST(GatedLinearReference, DxIsTheDerivativeOfTheGateAndTheNextProduct) {
  for (const GateActivation activation : kGateActivations) {
    Fixture fixture(3);
    const auto dx = gated_linear::make_dx({4, 5, 6}, DType::f64, activation, fixture);
    const GateForward gate{.gate_up = fixture.random(DType::f64, {4, 10}),
                           .out = fixture.output(DType::f64, {4, 5}),
                           .activation = activation};
    std::copy_n(gate.gate_up.as<double>(), 40, dx.gate_up.as<double>());
    const MatmulForward next{.x = gate.out,
                             .weight = dx.weight,
                             .bias = {},
                             .out = fixture.output(DType::f64, {4, 6}),
                             .preact = {}};
    const auto loss = [&] {
      run_variant(gate_forward_op(), find_variant(gate_forward_op(), kReference), gate, 1);
      run_variant(matmul_forward_op(), find_variant(matmul_forward_op(), kReference), next, 1);
      double total = 0;
      for (int i = 0; i < 24; ++i) total += next.out.as<double>()[i] * dx.dout.as<double>()[i];
      return total;
    };
    run_variant(gated_dx_op(), find_variant(gated_dx_op(), kReference), dx, 1);
    check_gradient(loss, gate.gate_up, dx.gate_up, "gate_up");
  }
}

TEST(GatedLinear, RefusesTensorsThatDoNotFit) {
  Fixture fixture(4);
  const auto forward_with = [&](auto change) {
    auto args = gated_linear::make_forward({4, 8, 16}, DType::bf16, GateActivation::silu, fixture);
    change(args);
    return args.problem();
  };
  EXPECT_NO_THROW(forward_with([](GatedForward&) {}));
  EXPECT_THROW(forward_with([&](GatedForward& a) { a.out = fixture.output(DType::bf16, {4, 16}); }), Error);
  EXPECT_THROW(forward_with([&](GatedForward& a) {
                 a.gate_up = fixture.output(DType::f32, {4, 16});
                 a.out = fixture.output(DType::f32, {4, 8});
               }),
               Error);
  const auto dx_with = [&](auto change) {
    auto args = gated_linear::make_dx({4, 8, 16}, DType::bf16, GateActivation::silu, fixture);
    change(args);
    return args.problem();
  };
  EXPECT_NO_THROW(dx_with([](GatedDx&) {}));
  EXPECT_THROW(dx_with([&](GatedDx& a) { a.gate_up = fixture.output(DType::bf16, {4, 15}); }), Error);
  EXPECT_THROW(dx_with([&](GatedDx& a) { a.gate_up = fixture.output(DType::bf16, {5, 16}); }), Error);
  EXPECT_THROW(dx_with([&](GatedDx& a) { a.scratch = {}; }), Error);
  EXPECT_THROW(dx_with([&](GatedDx& a) {
                 a.gate_up = fixture.output(DType::f32, {4, 16});
                 a.scratch = fixture.output(DType::f32, {4, 8});
               }),
               Error);
}

#if WARPWRIGHT_CUDA
// The variants for a forward and a dx of this size on a Hopper.
std::pair<std::string_view, std::string_view> chosen_on_a_hopper(const gated_linear::Case& c,
                                                                 const ForcedChoices& forced = {}) {
  const DeviceInfo device = a_hopper(forced);
  Fixture fixture = Fixture::of_shapes();
  const auto forward = gated_linear::make_forward(c, DType::bf16, GateActivation::silu, fixture);
  const auto dx = gated_linear::make_dx(c, DType::bf16, GateActivation::silu, fixture);
  return {choose(device, gated_forward_op(), forward.problem()).variant->name,
          choose(device, gated_dx_op(), dx.problem()).variant->name};
}

TEST(GatedLinear, ATrainingStepIsFusedAndFewRowsAreNot) {
  constexpr std::string_view kFused = "cuda.persistent", kSeparate = "cuda.separate";
  for (const auto& c : gated_linear::gpu_bench_cases()) {
    EXPECT_EQ(chosen_on_a_hopper(c), std::pair(kFused, kFused)) << c.F;
  }
  EXPECT_EQ(chosen_on_a_hopper({1, 4864, 896}), std::pair(kSeparate, kSeparate));
  EXPECT_EQ(chosen_on_a_hopper({16384, 4860, 896}), std::pair(kSeparate, kSeparate));  // rows of 8 bytes
}

// A kernel that is forced for the product or the gate alone is used.
TEST(GatedLinear, AForcedKernelOfAPartIsUsed) {
  const auto separate = [](const ForcedChoices& forced) {
    const auto [forward, dx] = chosen_on_a_hopper({16384, 4864, 896}, forced);
    return std::pair(forward == "cuda.separate", dx == "cuda.separate");
  };
  EXPECT_EQ(separate({{"matmul", "cuda.persistent"}}), std::pair(true, true));
  EXPECT_EQ(separate({{"gate", "cuda.plain"}}), std::pair(true, true));
  EXPECT_EQ(separate({{"matmul.forward", "cuda.persistent"}}), std::pair(true, false));
  EXPECT_EQ(separate({{"gate.backward", "cuda.plain"}}), std::pair(false, true));
}

TEST(GatedLinear, TheFusedForwardRefusesWhatItDoesNotCompute) {
  const ForcedChoices none;
  const auto& variant = find_variant(gated_forward_op(), "cuda.persistent");
  Fixture fixture = Fixture::of_shapes();
  auto p = gated_linear::make_forward({256, 96, 64}, DType::bf16, GateActivation::silu, fixture).problem();
  const DeviceInfo device = a_hopper(none);
  EXPECT_EQ(variant.refuse(p, device), "");
  const auto refused = [&](auto change) {
    auto changed = p;
    change(changed);
    return variant.refuse(changed, device);
  };
  EXPECT_NE(refused([](auto& q) { q.product.bias = true; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.batch_invariant = true; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.packed = true; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.aligned = false; }), "");
  EXPECT_NE(refused([](auto& q) { q.gate.aligned = false; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.K = 0; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.M = std::int64_t{1} << 31; }), "");
}
#endif

}  // namespace
}  // namespace warpwright::ops
