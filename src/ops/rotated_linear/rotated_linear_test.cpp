#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/rotated_linear/cases.hpp"
#include "ops/testing/hopper.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};

// The product's terms and the two of a rotation.
ReductionLength terms(const rotated_linear::Case& c) {
  return [&](std::string_view) { return static_cast<double>(c.K + 2); };
}

std::vector<rotated_linear::Case> cases_for(std::string_view variant) {
  auto cases = rotated_linear::test_cases();
  for (const auto& c : rotated_linear::large_test_cases()) {
    if (variant.starts_with("cuda.")) cases.push_back(c);  // a CPU has no tiles, and takes long
  }
  return taken(cases);
}

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : cases_for(GetParam())) {
    for (const DType dtype : dtypes_for(rotated_forward_op(), GetParam())) {
      for (const RopeLayout layout : kRopeLayouts) {
        for (const bool bias : {false, true}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 31 + c.heads));
          const auto args = rotated_linear::make_forward(c, dtype, layout, fixture, bias);
          tally.add(check_variant(rotated_forward_op(), GetParam(), fixture, args, terms(c)));
          EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
        }
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// The least row is reported. Other rows are right, and so is what is not rotated.
TEST_P(Forward, ReportsWrongPositions) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto& variant = find_variant(rotated_forward_op(), GetParam());
  Fixture fixture(9);
  auto args = rotated_linear::make_forward({8, 6, 4, 64, 64}, DType::bf16, RopeLayout::half, fixture);
  if (auto reason = variant.refuse(args.problem(), device_for(GetParam())); !reason.empty())
    GTEST_SKIP() << reason;
  auto right = args;
  right.out = fixture.output(DType::bf16, args.out.shape);
  right.positions = fixture.integers({0, 63, 0, 5, 0, 0, 0, 7});
  run_variant(rotated_forward_op(), variant, right, 1);
  args.positions = fixture.integers({0, 63, 64, 5, -1, kLeast, kMost, 7});
  run_variant(rotated_forward_op(), variant, args, 3);
  EXPECT_EQ(*args.wrong.as<std::int64_t>(), 2);
  const bool on_cpu = device_for(GetParam()).device.kind == DeviceKind::cpu;
  EXPECT_EQ(elements_of(args.out.slice(1, 4, 2)), elements_of(right.out.slice(1, 4, 2)));
  for (const std::int64_t n : {0, 1, 3, 7}) {
    if (on_cpu) break;
    EXPECT_EQ(elements_of(args.out.select(0, n)), elements_of(right.out.select(0, n))) << n;
  }
  for (const std::int64_t before : {std::int64_t{0}, std::int64_t{1000}}) {
    *args.wrong.as<std::int64_t>() = before;  // kept if its row comes first, and replaced otherwise
    run_variant(rotated_forward_op(), variant, args, 1);
    EXPECT_EQ(*args.wrong.as<std::int64_t>(), std::min<std::int64_t>(before, 2));
  }
}

TEST_P(Forward, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args =
      rotated_linear::make_forward({1500, 9, 6, 64, 136}, DType::bf16, RopeLayout::half, fixture, true);
  const auto reason = check_repeats(rotated_forward_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(RotatedLinear, Forward, ::testing::ValuesIn(variant_names(rotated_forward_op())),
                         test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(7);
  const auto args = rotated_linear::make_forward({100, 6, 4, 64, 64}, DType::bf16, RopeLayout::half, fixture);
  const auto reason =
      check_repeated(rotated_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 66.0; },
                     {.beyond = "out", .once = {"weight", "cos", "sin", "wrong"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(RotatedLinear, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(rotated_forward_op())), test_name);

TEST(RotatedLinear, ACallOnACpuThrowsForAWrongPosition) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  auto args = rotated_linear::make_forward({4, 3, 2, 16, 8}, DType::f32, RopeLayout::half, fixture);
  rotated_forward(context, args);
  args.positions = fixture.integers({0, 1, 64, 2});
  EXPECT_THROW(rotated_forward(context, args), Error);
  EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
}

TEST(RotatedLinear, RefusesTensorsThatDoNotFit) {
  Fixture fixture(4);
  const auto with = [&](auto change) {
    auto args = rotated_linear::make_forward({4, 3, 2, 16, 8}, DType::bf16, RopeLayout::half, fixture, true);
    change(args);
    return args.problem();
  };
  EXPECT_NO_THROW(with([](RotatedForward&) {}));
  EXPECT_THROW(with([](RotatedForward& a) { a.rotated = 0; }), Error);
  EXPECT_THROW(with([](RotatedForward& a) { a.rotated = 4; }), Error);
  EXPECT_THROW(with([&](RotatedForward& a) { a.out = fixture.output(DType::bf16, {4, 48}); }), Error);
  EXPECT_THROW(with([&](RotatedForward& a) { a.out = fixture.output(DType::f32, {4, 3, 16}); }), Error);
  EXPECT_THROW(with([&](RotatedForward& a) { a.out = fixture.output(DType::bf16, {4, 4, 16}); }), Error);
  EXPECT_THROW(with([&](RotatedForward& a) { a.positions = fixture.integers({1, 2, 3}); }), Error);
  EXPECT_THROW(with([](RotatedForward& a) { a.wrong = {}; }), Error);
  EXPECT_THROW(with([&](RotatedForward& a) { a.bias = fixture.output(DType::bf16, {47}); }), Error);
}

#if WARPWRIGHT_CUDA
std::string_view chosen_on_a_hopper(const rotated_linear::Case& c, const ForcedChoices& forced = {}) {
  Fixture fixture = Fixture::of_shapes();
  const auto args = rotated_linear::make_forward(c, DType::bf16, RopeLayout::half, fixture);
  return choose(a_hopper(forced), rotated_forward_op(), args.problem()).variant->name;
}

TEST(RotatedLinear, ATrainingStepIsFusedAndFewRowsAreNot) {
  for (const auto& c : rotated_linear::bench_cases(2048)) EXPECT_EQ(chosen_on_a_hopper(c), "cuda.persistent");
  EXPECT_EQ(chosen_on_a_hopper({1, 18, 16, 64, 896}), "cuda.separate");
  EXPECT_EQ(chosen_on_a_hopper({16384, 12, 8, 96, 896}), "cuda.separate");
}

TEST(RotatedLinear, AForcedKernelOfAPartIsUsed) {
  const auto chosen = [](const ForcedChoices& forced) {
    Fixture fixture = Fixture::of_shapes();
    const auto args =
        rotated_linear::make_forward({16384, 18, 16, 64, 896}, DType::bf16, RopeLayout::half, fixture);
    return choose(a_hopper(forced), rotated_forward_op(), args.problem()).text;
  };
  EXPECT_NE(chosen({{"matmul", "cuda.block"}}).find("cuda.separate[cuda.block["), std::string::npos);
  for (const char* name : {"rope", "rope.forward"}) {
    const std::string text = chosen({{name, "cuda.plain"}});
    EXPECT_TRUE(text.starts_with("cuda.separate[") && text.ends_with(", cuda.plain]")) << text;
  }
  for (const char* name : {"rope.backward", "matmul.dx"}) {  // no parts of this operation
    EXPECT_TRUE(chosen({{name, "cuda.plain"}}).starts_with("cuda.persistent[")) << name;
  }
}

TEST(RotatedLinear, TheFusedKernelRefusesWhatItDoesNotCompute) {
  const ForcedChoices none;
  const auto& variant = find_variant(rotated_forward_op(), "cuda.persistent");
  Fixture fixture = Fixture::of_shapes();
  const auto p =
      rotated_linear::make_forward({256, 3, 2, 64, 64}, DType::bf16, RopeLayout::half, fixture).problem();
  const DeviceInfo device = a_hopper(none);
  EXPECT_EQ(variant.refuse(p, device), "");
  const auto refused = [&](auto change) {
    auto changed = p;
    change(changed);
    return variant.refuse(changed, device);
  };
  EXPECT_NE(refused([](auto& q) { q.product.batch_invariant = true; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.packed = true; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.aligned = false; }), "");
  EXPECT_NE(refused([](auto& q) { q.rope.aligned = false; }), "");
  EXPECT_NE(refused([](auto& q) { q.rope.layout = RopeLayout::interleaved; }), "");
  EXPECT_NE(refused([](auto& q) { q.rope.R = 32; }), "");
  EXPECT_NE(refused([](auto& q) { q.rope.R = q.rope.HS = 96; }), "");
  EXPECT_NE(refused([](auto& q) { q.rope.P = 0; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.K = 60; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.K = 0; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.M = 0; }), "");
  EXPECT_NE(refused([](auto& q) { q.product.M = std::int64_t{1} << 31; }), "");
}
#endif

}  // namespace
}  // namespace warpwright::ops
