#include <gtest/gtest.h>

#include "ops/layernorm/layernorm.hpp"
#include "ops/residual/residual.hpp"
#include "ops/residual_layernorm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Forward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;  // some variants take only some of the row lengths: what each checks is counted
  int checked = 0;
  for (const auto& c : taken(residual_layernorm::test_cases())) {
    for (const DType dtype : dtypes_for(residual_layernorm_forward_op(), GetParam())) {
      for (const auto& [statistics, fp32_parameters] :
           {std::pair(true, false), {false, false}, {true, true}}) {
        if (fp32_parameters && size_of(dtype) != 2) continue;
        Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
        const auto args =
            residual_layernorm::make_forward(c, dtype, statistics, fixture, false, fp32_parameters);
        const auto reduction = [&](std::string_view) {
          return (1 + c.mean * c.mean) * static_cast<double>(c.C);
        };
        const auto reason =
            check_variant(residual_layernorm_forward_op(), GetParam(), fixture, args, reduction);
        reason.empty() ? void(++checked) : void(refusal = reason);
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// residual over x and out over y, as a model without a buffer to spare has them.
TEST_P(Forward, WorksInPlace) {
  const auto& variant = find_variant(residual_layernorm_forward_op(), GetParam());
  Fixture fixture(2);
  auto args = residual_layernorm::make_forward({37, 96}, DType::f32, true, fixture);
  if (auto reason = variant.refuse(residual_layernorm_forward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(residual_layernorm_forward_op(), variant, args, 1);
  const auto residual = elements_of(args.residual), out = elements_of(args.out);
  args.residual = args.x;
  args.out = args.y;
  run_variant(residual_layernorm_forward_op(), variant, args, 1);
  EXPECT_EQ(elements_of(args.x), residual);
  EXPECT_EQ(elements_of(args.y), out);
}

// On the CPU the sums have one order, so that fusing changes no bit; on a GPU too if a row has the same
// shape.
TEST_P(Forward, GivesTheBitsOfItsParts) {
  std::string refusal;
  int checked = 0;
  const auto& variant = find_variant(residual_layernorm_forward_op(), GetParam());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(3);
    auto args = residual_layernorm::make_forward({37, 96}, dtype, true, fixture);
    args.x = fixture.random(dtype, {37, 96});
    args.y = fixture.random(dtype, {37, 96});
    refusal = variant.refuse(residual_layernorm_forward_op().problem(args), device_for(variant.name));
    if (!refusal.empty()) continue;
    run_variant(residual_layernorm_forward_op(), variant, args, 1);
    const std::string sum = GetParam().rfind("cuda.", 0) == 0 ? "cuda.packed"
                            : GetParam() == "cpu.portable"    ? std::string(kReference)
                                                              : GetParam();
    const auto residual = fixture.output(dtype, {37, 96}), out = fixture.output(dtype, {37, 96});
    run_variant(residual_forward_op(), find_variant(residual_forward_op(), sum), {args.x, args.y, residual},
                1);
    run_variant(layernorm_forward_op(), find_variant(layernorm_forward_op(), GetParam()),
                {residual, args.weight, args.bias, out, {}, {}, args.eps, {}, {}}, 1);
    EXPECT_EQ(elements_of(args.residual), elements_of(residual));
    EXPECT_EQ(elements_of(args.out), elements_of(out));
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, TakesRowsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = residual_layernorm::make_forward({4, 64}, DType::bf16, false, fixture);
  args.x = between_packs(args.x);
  for (Tensor* tensor : {&args.y, &args.residual, &args.out}) *tensor = tensor->slice(0, 0, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason = check_unaligned(residual_layernorm_forward_op(), GetParam(), fixture, args, reduction,
                                      {"cuda.warp_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(ResidualLayerNorm, Forward,
                         ::testing::ValuesIn(variant_names(residual_layernorm_forward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // of the variants of a GPU

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(5);
  const auto args = residual_layernorm::make_forward({509, 768}, DType::bf16, true, fixture);
  const auto reason =
      check_repeated(residual_layernorm_forward_op(), GetParam(), fixture, args,
                     [](std::string_view) { return 768.0; }, {.beyond = "x", .once = {"weight", "bias"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(ResidualLayerNorm, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(residual_layernorm_forward_op())), test_name);

TEST(ResidualLayerNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(4);
  Context context{ContextOptions{}};
  const auto args = residual_layernorm::make_forward({3, 40}, DType::f32, true, fixture);
  auto wrong = args;
  wrong.y = fixture.random(DType::f32, {3, 39});
  EXPECT_THROW(residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.residual = wrong.out;
  EXPECT_THROW(residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(residual_layernorm_forward(context, wrong), Error);
  wrong = args;
  wrong.weight = fixture.random(DType::bf16, {40});  // 16 bits with fp32
  wrong.bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(residual_layernorm_forward(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
