// Tests of normalizations with a residual.
#include <gtest/gtest.h>

#include "ops/norm/cases.hpp"
#include "ops/residual/residual.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace
using norm::Case;
using norm::Form;

class ResidualForward : public testing::VariantTest {};

// Some variants take only some lengths of rows and some forms, so the checked cases are counted.
void check_forms(const std::string& variant, const std::vector<Case>& cases, const std::vector<Form>& forms) {
  std::string refusal;
  int checked = 0;
  for (const Form& form : forms) {
    for (const Case& c : cases) {
      Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
      const auto args = norm::make_forward(c, form, fixture);
      const auto reduction = [&](std::string_view) {
        return (1 + c.mean * c.mean) * static_cast<double>(c.C);
      };
      const auto reason = check_variant(norm_forward_op(), variant, fixture, args, reduction);
      reason.empty() ? void(++checked) : void(refusal = reason);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A pre-norm model, which stores the sum, and a post-norm encoder, which does not.
TEST_P(ResidualForward, MatchesTheReference) {
  std::vector<Form> forms;
  for (const DType dtype : dtypes_for(norm_forward_op(), GetParam())) {
    forms.push_back({.dtype = dtype, .residual = true, .sum = true});
    forms.push_back({.dtype = dtype, .statistics = false, .residual = true, .x_bias = true});
  }
  check_forms(GetParam(), taken(norm::test_cases()), forms);
}

TEST_P(ResidualForward, OfEveryFormMatchesTheReference) {
  std::vector<Form> forms;
  for (const DType dtype : dtypes_for(norm_forward_op(), GetParam())) {
    for (unsigned bits = 0; bits < 64; ++bits) {
      const auto has = [&](unsigned bit) { return (bits >> bit & 1) != 0; };
      const Form form{.dtype = dtype,
                      .centered = has(0),
                      .weight = has(1) || has(2),
                      .bias = has(1),
                      .fp32_parameters = has(2),
                      .statistics = has(3),
                      .residual = true,
                      .x_bias = has(4),
                      .sum = has(5)};
      if (form.fp32_parameters && size_of(dtype) != 2) continue;
      forms.push_back(form);
    }
  }
  const std::vector<Case> cases{{0, 8}, {5, 1}, {37, 96}, {33, 1021}, {9, 4096}};
  check_forms(GetParam(), taken(cases), forms);
}

// sum replaces x, and out replaces residual, as in a model that reuses its buffers.
TEST_P(ResidualForward, WorksInPlace) {
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  std::string refusal;
  int checked = 0;
  for (const bool sum : {true, false}) {
    for (const std::int64_t C : {96, 4096}) {
      Fixture fixture(2);
      auto args = norm::make_forward(
          {37, C}, {.statistics = sum, .residual = true, .x_bias = true, .sum = sum}, fixture);
      refusal = variant.refuse(op.problem(args), device_for(variant.name));
      if (!refusal.empty()) continue;
      run_variant(op, variant, args, 1);
      const auto out = elements_of(args.out);
      const auto kept = sum ? elements_of(args.sum) : std::vector<double>{};
      if (sum) args.sum = args.x;
      args.out = args.residual;
      run_variant(op, variant, args, 1);
      EXPECT_EQ(elements_of(args.residual), out);
      if (sum) {
        EXPECT_EQ(elements_of(args.x), kept);
      }
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Fusing changes no bit on the CPU, where sums have one order. The same holds on a GPU if a row has the same
// shape.
TEST_P(ResidualForward, GivesTheBitsOfItsParts) {
  std::string refusal;
  int checked = 0;
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t C : {96, 4096}) {
      Fixture fixture(3);
      auto args = norm::make_forward({37, C}, {.dtype = dtype, .residual = true, .sum = true}, fixture);
      args.x = fixture.random(dtype, {37, C});
      args.residual = fixture.random(dtype, {37, C});
      refusal = variant.refuse(op.problem(args), device_for(variant.name));
      if (!refusal.empty()) continue;
      run_variant(op, variant, args, 1);
      const std::string adds = GetParam().rfind("cuda.", 0) == 0 ? "cuda.packed"
                               : GetParam() == "cpu.portable"    ? std::string(kReference)
                                                                 : GetParam();
      const auto sum = fixture.output(dtype, {37, C}), out = fixture.output(dtype, {37, C});
      run_variant(residual_forward_op(), find_variant(residual_forward_op(), adds),
                  {args.x, args.residual, sum}, 1);
      run_variant(op, variant,
                  {.x = sum, .weight = args.weight, .bias = args.bias, .out = out, .eps = args.eps}, 1);
      EXPECT_EQ(elements_of(args.sum), elements_of(sum));
      EXPECT_EQ(elements_of(args.out), elements_of(out));
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// With a count from the device, its rows have the same bits as without one.
TEST_P(ResidualForward, OfAsManyRowsAsTheDeviceSays) {
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t C : {96, 4096}) {
      for (const std::int32_t rows : {0, 17, 64, 100}) {
        Fixture fixture(2);
        const Form form{.dtype = dtype, .statistics = false, .residual = true, .x_bias = true};
        auto args = norm::make_forward({64, C}, form, fixture);
        refusal = variant.refuse(op.problem(args), device_for(variant.name));
        if (!refusal.empty()) continue;
        run_variant(op, variant, args, 1);
        auto all = elements_of(args.out);
        args.rows = fixture.integers({rows});
        args.out = fixture.output(dtype, {64, C});
        run_variant(op, variant, args, 1);
        auto some = elements_of(args.out);
        for (auto* values : {&all, &some}) values->resize(static_cast<std::size_t>(std::min(rows, 64) * C));
        EXPECT_EQ(some, all) << rows;
        ++checked;
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A batch-invariant encoder relies on this.
TEST_P(ResidualForward, ARowDoesNotDependOnTheOthers) {
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  constexpr std::int64_t kMany = 150, kFew = 7;
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool bias : {true, false}) {
      for (const std::int64_t C : {96, 768, 4096}) {
        Fixture fixture(3);
        const Form form{.dtype = dtype, .bias = bias, .statistics = false, .residual = true, .x_bias = true};
        auto args = norm::make_forward({kMany, C}, form, fixture);
        refusal = variant.refuse(op.problem(args), device_for(variant.name));
        if (!refusal.empty()) continue;
        run_variant(op, variant, args, 1);
        auto wanted = elements_of(args.out);
        wanted.resize(static_cast<std::size_t>(kFew * C));
        for (Tensor* tensor : {&args.x, &args.residual, &args.out}) *tensor = tensor->slice(0, 0, kFew);
        run_variant(op, variant, args, 1);
        EXPECT_EQ(elements_of(args.out), wanted) << name_of(dtype) << " " << C;
        ++checked;
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(ResidualForward, TakesRowsThatAreNotAligned) {
  std::string refusal;
  int checked = 0;
  for (const bool sum : {true, false}) {
    Fixture fixture(6);
    const Form form{.dtype = DType::bf16, .statistics = sum, .residual = true, .x_bias = !sum, .sum = sum};
    auto args = norm::make_forward({4, 64}, form, fixture);
    args.x = between_packs(args.x);
    for (Tensor* tensor : {&args.residual, &args.sum, &args.out, &args.mean, &args.rstd}) {
      if (*tensor) *tensor = tensor->slice(0, 0, 3);
    }
    const auto reduction = [](std::string_view) { return 64.0; };
    std::vector<std::string_view> move_packs{"cuda.warp_row"};
    if (!sum) move_packs.push_back("cuda.state_row");
    const auto reason = check_unaligned(norm_forward_op(), GetParam(), fixture, args, reduction, move_packs);
    reason.empty() ? void(++checked) : void(refusal = reason);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// The sum's columns are kept, even if x is overwritten.
TEST_P(ResidualForward, KeepsLostColumnsOfTheSum) {
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t C : {96, 4096}) {
      Fixture fixture(7);
      auto args = norm::make_forward({37, C}, {.dtype = dtype, .bias = false, .residual = true, .sum = true},
                                     fixture);
      for (const std::int64_t c : {3, 50}) {
        visit_dtype(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          args.weight.as<T>()[c] = T(0);
        });
      }
      args.lost.columns = fixture.integers(std::vector<std::int32_t>(4, 99));
      args.lost.x = fixture.output(dtype, {37, 3});
      args.out = args.x;
      refusal = variant.refuse(op.problem(args), device_for(variant.name));
      if (!refusal.empty()) continue;
      run_variant(op, variant, args, 1);
      const auto* columns = args.lost.columns.as<std::int32_t>();
      EXPECT_EQ(std::vector<std::int32_t>(columns, columns + 4), (std::vector<std::int32_t>{2, 3, 50, -1}));
      const auto sum = elements_of(args.sum), kept = elements_of(args.lost.x);
      for (std::size_t n = 0; n < 37; ++n) {
        EXPECT_EQ(kept[3 * n], sum[n * static_cast<std::size_t>(C) + 3]);
        EXPECT_EQ(kept[3 * n + 1], sum[n * static_cast<std::size_t>(C) + 50]);
      }
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

INSTANTIATE_TEST_SUITE_P(Norm, ResidualForward, ::testing::ValuesIn(variant_names(norm_forward_op())),
                         test_name);

class HugeResidualForward : public testing::VariantTest {};  // for the variants of a GPU

TEST_P(HugeResidualForward, GivesEveryRowItsBits) {
  std::string refusal;
  int checked = 0;
  for (const bool sum : {true, false}) {
    Fixture fixture(5);
    const Form form{.dtype = DType::bf16, .statistics = sum, .residual = true, .x_bias = true, .sum = sum};
    const Case c = GetParam() == "cuda.block_row" ? Case{127, 4096} : Case{509, 768};
    const auto args = norm::make_forward(c, form, fixture);
    const auto reason = check_repeated(norm_forward_op(), GetParam(), fixture, args,
                                       [&](std::string_view) { return static_cast<double>(c.C); },
                                       {.beyond = "x", .once = {"x_bias", "weight", "bias"}});
    reason.empty() ? void(++checked) : void(refusal = reason);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeResidualForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Norm, HugeResidualForward, ::testing::ValuesIn(gpu_variant_names(norm_forward_op())),
                         test_name);

TEST(ResidualNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(4);
  Context context{ContextOptions{}};
  const auto args = norm::make_forward({3, 40}, {.residual = true, .x_bias = true, .sum = true}, fixture);
  const auto refused = [&](const auto& change) {
    NormForward wrong = args;
    change(wrong);
    EXPECT_THROW(norm_forward(context, wrong), Error);
  };
  refused([&](NormForward& a) { a.residual = fixture.random(DType::f32, {3, 39}); });
  refused([&](NormForward& a) { a.residual = {}; });
  refused([&](NormForward& a) { a.sum = a.out; });
  refused([&](NormForward& a) { a.x_bias = fixture.random(DType::bf16, {40}); });
  refused([&](NormForward& a) { a.bias = fixture.random(DType::bf16, {40}); });
  refused(
      [&](NormForward& a) { a.weight = a.bias = fixture.random(DType::bf16, {40}); });  // 16 bits with fp32
  refused([&](NormForward& a) { a.centered = false; });  // bias and mean are still given
  refused([&](NormForward& a) { a.rows = fixture.random(DType::f32, {1}); });
  refused([&](NormForward& a) {
    a.sum = {};
    a.lost.columns = fixture.integers({0});
  });
}

}  // namespace
}  // namespace warpwright::ops
