#include <gtest/gtest.h>

#include <algorithm>

#include "ops/rotated_attention/cases.hpp"
#include "ops/testing/hopper.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Backward : public testing::VariantTest {};

// The two parts' oracles work in fp64: with the forward's lse, probabilities add up to 1.
RotatedAttentionBackward with_lse(const rotated_attention::Case& c, DType dtype, Fixture& fixture) {
  const auto args = rotated_attention::make_backward(c, dtype, fixture);
  const AttentionBackward& b = args.attention;
  const Tensor out = fixture.output(dtype, b.q.shape);
  run_variant(attention_forward_op(), find_variant(attention_forward_op(), kReference),
              {b.q, b.k, b.v, b.cu_seqlens_q, b.cu_seqlens_k, out, b.lse, b.scale, b.mask, b.window}, 1);
  return args;
}

TEST_P(Backward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(rotated_attention::test_cases())) {
    for (const DType dtype : dtypes_for(rotated_attention_backward_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.attention.HS * 1009 + c.attention.NH));
      const auto args = with_lse(c, dtype, fixture);
      const double group = static_cast<double>(c.attention.NH / c.attention.key_heads());
      const double terms =
          2 * group * std::max(attention::longest(c.attention), static_cast<double>(c.attention.HS));
      tally.add(check_variant(rotated_attention_backward_op(), GetParam(), fixture, args,
                              [&](std::string_view) { return 2 * terms; }));
      EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// A fused kernel makes the bits of its attention and of the rotation after it.
TEST_P(Backward, HasTheBitsOfItsPartsOneAfterTheOther) {
  const std::string name = GetParam();
  const auto& variant = find_variant(rotated_attention_backward_op(), name);
  const DeviceInfo device = device_for(name);
  Tally tally;
  for (const auto& c : taken(rotated_attention::test_cases())) {
    for (const DType dtype : dtypes_for(rotated_attention_backward_op(), name)) {
      Fixture fixture(3);
      const auto args = with_lse(c, dtype, fixture);
      const auto reason = variant.refuse(args.problem(), device);
      tally.add(reason);
      if (!reason.empty()) continue;
      run_variant(rotated_attention_backward_op(), variant, args, 1);
      auto parts = args;
      const std::int64_t heads = args.dqk.shape[1], KH = args.attention.dv.shape[1];
      const Tensor dqkv = fixture.output(dtype, {args.dqk.shape[0], heads + KH, args.dqk.shape[2]});
      parts.dqk = dqkv.slice(1, 0, heads);
      parts.attention.dv = dqkv.slice(1, heads, KH);
      const AttentionBackward alone = rotated_attention::attention_of(parts);
      run_variant(attention_backward_op(), *choose(device, attention_backward_op(), alone.problem()).variant,
                  alone, 1);
      const RopeBackward back = rotated_attention::rope_of(parts);
      run_variant(rope_backward_op(), *choose(device, rope_backward_op(), back.problem()).variant, back, 1);
      EXPECT_EQ(elements_of(args.dqk), elements_of(parts.dqk)) << args.problem().describe();
      EXPECT_EQ(elements_of(args.attention.dv), elements_of(parts.attention.dv));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// The least row is reported, and the other rows are right.
TEST_P(Backward, ReportsWrongPositions) {
  const auto& variant = find_variant(rotated_attention_backward_op(), GetParam());
  const DeviceInfo device = device_for(GetParam());
  Fixture fixture(9), other(9);
  const rotated_attention::Case c{attention::grouped(attention::self_attention({70, 5}, 4, 64), 2)};
  const auto right = with_lse(c, DType::bf16, other);
  auto args = with_lse(c, DType::bf16, fixture);
  if (auto reason = variant.refuse(args.problem(), device); !reason.empty()) GTEST_SKIP() << reason;
  auto* const positions = args.positions.as<std::int32_t>();
  positions[67] = 70, positions[66] = -1, positions[71] = 1 << 30;
  run_variant(rotated_attention_backward_op(), variant, right, 1);
  run_variant(rotated_attention_backward_op(), variant, args, 1);
  EXPECT_EQ(*args.wrong.as<std::int64_t>(), 66);
  EXPECT_EQ(elements_of(args.attention.dv), elements_of(right.attention.dv));
  if (device.device.kind == DeviceKind::cpu) return;
  for (std::int64_t n = 0; n < 75; ++n) {
    if (n == 66 || n == 67 || n == 71) continue;
    EXPECT_EQ(elements_of(args.dqk.select(0, n)), elements_of(right.dqk.select(0, n))) << n;
  }
}

TEST_P(Backward, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = rotated_attention::make_backward(
      {attention::grouped(attention::self_attention({700, 333}, 6, 64), 2)}, DType::bf16, fixture);
  const auto reason = check_repeats(rotated_attention_backward_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(RotatedAttention, Backward,
                         ::testing::ValuesIn(variant_names(rotated_attention_backward_op())), test_name);

TEST(RotatedAttention, ACallOnACpuThrowsForAWrongPosition) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto args =
      rotated_attention::make_backward({attention::self_attention({4}, 2, 16)}, DType::f32, fixture);
  rotated_attention_backward(context, args);
  args.positions.as<std::int32_t>()[2] = 4;
  EXPECT_THROW(rotated_attention_backward(context, args), Error);
  EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
}

TEST(RotatedAttention, RefusesTensorsThatDoNotFit) {
  Fixture fixture(4);
  const auto with = [&](auto change) {
    auto args = rotated_attention::make_backward(
        {attention::grouped(attention::self_attention({4, 2}, 4, 16), 2)}, DType::bf16, fixture);
    change(args);
    return args.problem();
  };
  using Args = RotatedAttentionBackward;
  EXPECT_NO_THROW(with([](Args&) {}));
  EXPECT_THROW(with([&](Args& a) { a.dqk = fixture.output(DType::bf16, {6, 5, 16}); }), Error);
  EXPECT_THROW(with([&](Args& a) { a.dqk = fixture.output(DType::f32, {6, 6, 16}); }), Error);
  EXPECT_THROW(with([](Args& a) { a.dqk = {}; }), Error);
  EXPECT_THROW(with([&](Args& a) { a.attention.dq = fixture.output(DType::bf16, {6, 4, 16}); }), Error);
  EXPECT_THROW(with([&](Args& a) { a.positions = fixture.integers({1, 2, 3}); }), Error);
  EXPECT_THROW(with([](Args& a) { a.wrong = {}; }), Error);
}

#if WARPWRIGHT_CUDA
RotatedAttentionProblem bench_problem() {
  Fixture fixture = Fixture::of_shapes();
  return rotated_attention::make_backward(rotated_attention::gpu_bench_cases()[0], DType::bf16, fixture)
      .problem();
}

TEST(RotatedAttention, AForcedKernelOfAPartIsUsed) {
  const RotatedAttentionProblem problem = bench_problem();
  const auto chosen = [&](const ForcedChoices& forced) {
    return choose(a_hopper(forced), rotated_attention_backward_op(), problem).text;
  };
  EXPECT_EQ(chosen({}), "cuda.flash_sm90");
  EXPECT_EQ(chosen({{"attention.backward", "cuda.flash_sm90"}}),
            "cuda.separate[cuda.flash_sm90, cuda.packed[16 bytes]]");
  EXPECT_EQ(chosen({{"rope", "cuda.plain"}}), "cuda.separate[cuda.flash_sm90, cuda.plain]");
  EXPECT_EQ(chosen({{"attention.forward", "cuda.flash"}}), "cuda.flash_sm90");  // no part of this operation
  EXPECT_EQ(chosen({{"rope.forward", "cuda.plain"}}), "cuda.flash_sm90");
}

TEST(RotatedAttention, TheFusedKernelRefusesWhatItDoesNotCompute) {
  const ForcedChoices none;
  const auto& variant = find_variant(rotated_attention_backward_op(), "cuda.flash_sm90");
  const DeviceInfo device = a_hopper(none);
  EXPECT_EQ(variant.refuse(bench_problem(), device), "");
  const auto refused = [&](auto change) {
    auto changed = bench_problem();
    change(changed);
    return variant.refuse(changed, device);
  };
  EXPECT_NE(refused([](auto& p) { p.rope.layout = RopeLayout::interleaved; }), "");
  EXPECT_NE(refused([](auto& p) { p.rope.R = 32; }), "");
  EXPECT_NE(refused([](auto& p) { p.rope.aligned = false; }), "");
  EXPECT_NE(refused([](auto& p) { p.attention.layout.aligned = false; }), "");
  EXPECT_NE(refused([](auto& p) { p.attention.HS = p.rope.HS = p.rope.R = 96; }), "");
  EXPECT_NE(refused([](auto& p) { p.attention.Nq = 0; }), "");
}

// A gradient or a table that does not begin at a multiple of 16 bytes.
TEST(RotatedAttention, AlignmentIsPartOfTheProblem) {
  Fixture fixture(6);
  const auto right =
      rotated_attention::make_backward({attention::self_attention({9}, 2, 64)}, DType::bf16, fixture);
  EXPECT_TRUE(right.problem().rope.aligned);
  auto args = right;
  args.dqk = fixture.output(DType::bf16, {9, 4, 65}).slice(2, 0, 64);
  EXPECT_FALSE(args.problem().rope.aligned);
  args = right;
  args.cos = fixture.output(DType::f32, {9 * 32 + 1}).slice(0, 1, 9 * 32).view({9, 32});
  EXPECT_FALSE(args.problem().rope.aligned);
}
#endif

}  // namespace
}  // namespace warpwright::ops
