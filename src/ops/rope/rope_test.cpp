#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/rope/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

double two_terms(std::string_view) {
  return 2;
}

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

// Calls test(case, dtype, layout, fixture) for all of them.
template <class Args, class F>
void for_each_case(const Op<Args>& op, std::string_view variant, const F& test) {
  Tally tally;
  for (const auto& c : taken(rope::test_cases())) {
    for (const DType dtype : dtypes_for(op, variant)) {
      for (const RopeLayout layout : kRopeLayouts) {
        Fixture fixture(static_cast<std::uint64_t>(c.HS * 1009 + c.R));
        tally.add(test(c, dtype, layout, fixture));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Forward, MatchesTheReference) {
  for_each_case(rope_forward_op(), GetParam(),
                [](const rope::Case& c, DType dtype, RopeLayout layout, Fixture& f) {
                  const auto args = rope::make_forward(c, dtype, layout, f);
                  std::string reason = check_variant(rope_forward_op(), GetParam(), f, args, two_terms);
                  EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
                  return reason;
                });
}

TEST_P(Backward, MatchesTheReference) {
  for_each_case(rope_backward_op(), GetParam(),
                [](const rope::Case& c, DType dtype, RopeLayout layout, Fixture& f) {
                  const auto args = rope::make_backward(c, dtype, layout, f);
                  std::string reason = check_variant(rope_backward_op(), GetParam(), f, args, two_terms);
                  EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
                  return reason;
                });
}

// Rows, heads or tables that do not begin at multiples of 16 bytes.
TEST_P(Forward, TakesTensorsThatAreNotAligned) {
  Tally tally;
  for (const DType dtype : dtypes_for(rope_forward_op(), GetParam())) {
    for (int which = 0; which < 4; ++which) {
      Fixture fixture(6);
      auto args = rope::make_forward({6, 5, 64, 64}, dtype, RopeLayout::half, fixture);
      if (which == 0) args.x = fixture.random(dtype, {6, 5, 65}).slice(2, 0, 64);
      if (which == 1)
        args.x = fixture.random(dtype, {6, 6 * 64 + 1})
                     .view({6 * (6 * 64 + 1)})
                     .slice(0, 1, 6 * 5 * 64)
                     .view({6, 5, 64});
      if (which == 2) args.out = fixture.output(dtype, {6, 5, 67}).slice(2, 1, 64);
      if (which == 3) {
        const Tensor tables = fixture.output(DType::f32, {2 * 64 * 32 + 1});
        args.cos = tables.slice(0, 0, 64 * 32).view({64, 32});
        args.sin = tables.slice(0, 64 * 32 + 1, 64 * 32).view({64, 32});
        write_rope_tables({.theta = 100, .R = 64}, args.cos, args.sin);
      }
      EXPECT_FALSE(args.problem().aligned);
      tally.add(check_variant(rope_forward_op(), GetParam(), fixture, args, two_terms));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// A rotation keeps lengths, and the rotation by the negative angle undoes it.
TEST_P(Backward, UndoesTheForward) {
  const auto& variant = find_variant(rope_backward_op(), GetParam());
  for (const RopeLayout layout : kRopeLayouts) {
    Fixture fixture(4);
    const auto forward = rope::make_forward({9, 4, 48, 32}, DType::f32, layout, fixture);
    run_variant(rope_forward_op(), find_variant(rope_forward_op(), kReference), forward, 1);
    const RopeBackward back{forward.out, forward.positions, forward.cos, forward.sin,
                            forward.out, forward.wrong,     layout};
    if (auto reason = variant.refuse(back.problem(), device_for(variant.name)); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    run_variant(rope_backward_op(), variant, back, 1);
    const Deviation error = compare(elements_of(back.dx), elements_of(forward.x), DType::f32);
    EXPECT_LE(error.relative, 2 * tolerance(DType::f32, 2)) << name_of(layout);
  }
}

// Wrong positions: the least row is reported. On a CPU nothing is written, on a GPU only the other rows.
template <class Args>
void check_wrong_positions(const Op<Args>& op, std::string_view name, Fixture& fixture, const Args& args,
                           const Tensor& out, const std::vector<std::int64_t>& wrong_rows) {
  const auto& variant = find_variant(op, name);
  const DeviceInfo device = device_for(name);
  if (auto reason = variant.refuse(op.problem(args), device); !reason.empty()) GTEST_SKIP() << reason;
  fixture.snapshot();
  run_variant(op, variant, args, 3);
  EXPECT_EQ(*args.wrong.template as<std::int64_t>(), wrong_rows.front());
  const bool on_cpu = device.device.kind == DeviceKind::cpu;
  for (std::int64_t n = 0; n < out.shape[0]; ++n) {
    const bool is_wrong = std::find(wrong_rows.begin(), wrong_rows.end(), n) != wrong_rows.end();
    const std::vector<double> row = elements_of(out.select(0, n));
    const auto finite = std::count_if(row.begin(), row.end(), [](double x) { return std::isfinite(x); });
    EXPECT_EQ(finite, on_cpu || is_wrong ? 0 : static_cast<std::int64_t>(row.size())) << "row " << n;
  }
  // An earlier report is kept if its row comes first, and replaced otherwise.
  for (const std::int64_t before : {std::int64_t{0}, std::int64_t{1000}}) {
    fixture.restore();
    *args.wrong.template as<std::int64_t>() = before;
    run_variant(op, variant, args, 1);
    EXPECT_EQ(*args.wrong.template as<std::int64_t>(), std::min(before, wrong_rows.front()));
  }
}

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

TEST_P(Forward, ReportsWrongPositions) {
  for (const std::int64_t HS : {64, 62}) {
    Fixture fixture(9);
    auto args = rope::make_forward({8, 6, HS, HS / 4 * 2, 64}, DType::f32, RopeLayout::half, fixture);
    args.positions = fixture.integers({0, 63, 64, 5, -1, kLeast, kMost, 7});
    check_wrong_positions(rope_forward_op(), GetParam(), fixture, args, args.out, {2, 4, 5, 6});
  }
}

TEST_P(Backward, ReportsWrongPositions) {
  Fixture fixture(9);
  auto args = rope::make_backward({5, 6, 64, 64, 64}, DType::f32, RopeLayout::interleaved, fixture);
  args.positions = fixture.integers({0, -7, 2, 64, 63});
  check_wrong_positions(rope_backward_op(), GetParam(), fixture, args, args.dx, {1, 3});
}

TEST_P(Forward, ReportsThatATableIsEmpty) {
  Fixture fixture(9);
  auto args = rope::make_forward({3, 2, 16, 16, 1}, DType::f32, RopeLayout::half, fixture);
  args.cos = args.cos.slice(0, 0, 0);
  args.sin = args.sin.slice(0, 0, 0);
  check_wrong_positions(rope_forward_op(), GetParam(), fixture, args, args.out, {0, 1, 2});
}

TEST_P(Backward, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = rope::make_backward({70, 18, 64, 64}, DType::bf16, RopeLayout::half, fixture);
  const auto reason = check_repeats(rope_backward_op(), GetParam(), fixture, args, 30);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(Rope, Forward, ::testing::ValuesIn(variant_names(rope_forward_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Rope, Backward, ::testing::ValuesIn(variant_names(rope_backward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryElementItsBits) {
  for (const std::int64_t HS : {128, 126}) {
    for (const RopeLayout layout : kRopeLayouts) {
      Fixture fixture(7);
      const auto args = rope::make_forward({100, 18, HS, HS / 4 * 2}, DType::bf16, layout, fixture);
      const auto reason = check_repeated(rope_forward_op(), GetParam(), fixture, args, two_terms,
                                         {.beyond = "x", .once = {"cos", "sin", "wrong"}});
      if (!reason.empty()) GTEST_SKIP() << reason;
    }
  }
}

TEST_P(HugeBackward, GivesEveryElementItsBits) {
  for (const std::int64_t HS : {128, 126}) {
    Fixture fixture(8);
    const auto args = rope::make_backward({100, 18, HS, HS / 4 * 2}, DType::bf16, RopeLayout::half, fixture);
    const auto reason = check_repeated(rope_backward_op(), GetParam(), fixture, args, two_terms,
                                       {.beyond = "dout", .once = {"cos", "sin", "wrong"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Rope, HugeForward, ::testing::ValuesIn(gpu_variant_names(rope_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Rope, HugeBackward, ::testing::ValuesIn(gpu_variant_names(rope_backward_op())),
                         test_name);

TEST(RopeReference, BackwardIsTheDerivativeOfForward) {
  for (const RopeLayout layout : kRopeLayouts) {
    for (const std::int64_t R : {10, 6}) {
      Fixture fixture(3);
      const rope::Case c{5, 3, 11, R};
      const auto forward = rope::make_forward(c, DType::f64, layout, fixture);
      auto backward = rope::make_backward(c, DType::f64, layout, fixture);
      const auto loss = [&] {
        run_variant(rope_forward_op(), find_variant(rope_forward_op(), kReference), forward, 1);
        double total = 0;
        for (int i = 0; i < 5 * 3 * 11; ++i) {
          total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
        }
        return total;
      };
      run_variant(rope_backward_op(), find_variant(rope_backward_op(), kReference), backward, 1);
      check_gradient(loss, forward.x, backward.dx, "dx");
    }
  }
}

// The heads of q and k of a qkv product, in one call and in place, get the bits of two calls; v is not
// touched.
TEST(Rope, RotatesTheHeadsOfAProductTogether) {
  constexpr std::int64_t kN = 7, kQ = 6, kK = 2, HS = 32;
  Fixture fixture(1);
  Context context{ContextOptions{}};
  const auto args = rope::make_forward({kN, kQ + 2 * kK, HS, HS}, DType::f32, RopeLayout::half, fixture);
  auto part = args;
  for (const auto& [first, heads] : {std::pair{std::int64_t{0}, kQ}, std::pair{kQ, kK}}) {
    part.x = args.x.slice(1, first, heads);
    part.out = args.out.slice(1, first, heads);
    rope_forward(context, part);
  }
  const std::vector<double> v = elements_of(args.x.slice(1, kQ + kK, kK));
  auto together = args;
  together.x = together.out = args.x.slice(1, 0, kQ + kK);
  rope_forward(context, together);
  EXPECT_EQ(elements_of(together.out), elements_of(args.out.slice(1, 0, kQ + kK)));
  EXPECT_EQ(elements_of(args.x.slice(1, kQ + kK, kK)), v);
}

TEST(Rope, ACallOnACpuThrowsForAWrongPosition) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  auto args = rope::make_forward({4, 2, 16, 16, 8}, DType::f32, RopeLayout::half, fixture);
  const Tensor right = args.positions;
  args.positions = fixture.integers({0, 1, 8, 2});
  fixture.snapshot();
  try {
    rope_forward(context, args);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "rope.forward: the position of row 2 is not in the table of 8 positions; give positions from 0 "
        "to 7, or a longer table");
  }
  expect_only_written(fixture, {});
  EXPECT_EQ(*args.wrong.as<std::int64_t>(), -1);
  args.positions = right;
  rope_forward(context, args);
  auto back = rope::make_backward({1, 2, 16, 16, 8}, DType::bf16, RopeLayout::half, fixture);
  back.positions = fixture.integers({-1});
  EXPECT_THROW(rope_backward(context, back), Error);
}

TEST(Rope, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(5);
  Context context{ContextOptions{}};
  const auto right = rope::make_forward({4, 3, 20, 16}, DType::f32, RopeLayout::half, fixture);
  rope_forward(context, right);
  const auto refuses = [&](auto change) {
    auto args = right;
    change(args);
    EXPECT_THROW(rope_forward(context, args), Error);
  };
  refuses([&](auto& a) { a.x = fixture.random(DType::f32, {4, 60}); });
  refuses([&](auto& a) { a.x = fixture.random(DType::bf16, {4, 3, 20}); });
  refuses([&](auto& a) { a.out = fixture.output(DType::f32, {4, 3, 16}); });
  refuses([&](auto& a) { a.out = {}; });
  refuses([&](auto& a) { a.x.strides = {60, 1, 3}; });     // last stride
  refuses([&](auto& a) { a.out.strides = {60, 19, 1}; });  // heads overlap
  refuses([&](auto& a) { a.out.strides = {59, 20, 1}; });  // rows overlap
  refuses([&](auto& a) { a.out.strides = {0, 20, 1}; });   // all rows in one place
  refuses([&](auto& a) {
    a.out = a.x;
    a.out.strides = {20, 80, 1};
  });  // in place, with other strides
  refuses([&](auto& a) { a.cos = a.sin = fixture.random(DType::f32, {64, 11}); });  // R > HS
  refuses([&](auto& a) { a.cos = a.sin = fixture.random(DType::f32, {64, 0}); });
  refuses([&](auto& a) { a.cos = a.sin = fixture.random(DType::bf16, {64, 8}); });
  refuses([&](auto& a) { a.sin = fixture.random(DType::f32, {63, 8}); });
  refuses([&](auto& a) { a.positions = fixture.integers({1, 2, 3}); });
  refuses([&](auto& a) { a.positions = fixture.random(DType::f32, {4}); });
  refuses([&](auto& a) { a.wrong = {}; });
  refuses([&](auto& a) { a.wrong = fixture.integers({-1}); });
  auto back = rope::make_backward({4, 3, 20, 16}, DType::f32, RopeLayout::half, fixture);
  back.dx = fixture.output(DType::f32, {4, 3, 21});
  EXPECT_THROW(rope_backward(context, back), Error);
}

TEST(RopeAngles, RefusesDescriptionsThatDoNotFit) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const RopeAngles llama3{.R = 8, .scaling = RopeScaling::llama3, .factor = 8, .original_positions = 8192};
  RopeAngles yarn = llama3;
  yarn.scaling = RopeScaling::yarn;
  const auto refuses = [](RopeAngles angles, auto change) {
    EXPECT_EQ(rope_frequencies(angles).size(), 4u);
    change(angles);
    EXPECT_THROW(rope_frequencies(angles), Error);
    EXPECT_THROW(rope_attention_factor(angles), Error);
  };
  for (const double theta : {1.0, -5.0, nan, inf}) refuses(llama3, [&](auto& a) { a.theta = theta; });
  for (const std::int64_t R : {0, -2, 7}) refuses(llama3, [&](auto& a) { a.R = R; });
  for (const double factor : {0.5, -1.0, nan, inf}) {
    refuses(llama3, [&](auto& a) { a.factor = factor; });
    refuses(yarn, [&](auto& a) { a.factor = factor; });
    refuses({.R = 8, .scaling = RopeScaling::linear}, [&](auto& a) { a.factor = factor; });
  }
  for (const std::int64_t L : {0, -1}) {
    refuses(llama3, [&](auto& a) { a.original_positions = L; });
    refuses(yarn, [&](auto& a) { a.original_positions = L; });
  }
  for (const double low : {0.0, 4.0, 5.0, nan}) refuses(llama3, [&](auto& a) { a.low_freq_factor = low; });
  for (const double slow : {0.0, 33.0, nan}) refuses(yarn, [&](auto& a) { a.beta_slow = slow; });
  for (const double m : {0.0, -1.0, nan, inf}) refuses(yarn, [&](auto& a) { a.attention_factor = m; });
  for (const double m : {-1.0, nan}) refuses(yarn, [&](auto& a) { a.mscale = m; });
  for (const double m : {-1.0, nan}) refuses(yarn, [&](auto& a) { a.mscale_all_dim = m; });
  Fixture fixture(1);
  const auto table = [&](DType dtype, std::int64_t columns) { return fixture.output(dtype, {3, columns}); };
  EXPECT_THROW(write_rope_tables({.R = 8}, table(DType::f32, 3), table(DType::f32, 3)), Error);
  EXPECT_THROW(write_rope_tables({.R = 8}, table(DType::f32, 4), table(DType::f64, 4)), Error);
  EXPECT_THROW(write_rope_tables({.R = 8}, table(DType::bf16, 4), table(DType::bf16, 4)), Error);
}

}  // namespace
}  // namespace warpwright::ops
