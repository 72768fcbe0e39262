#include "ops/embedding_layernorm/embedding_layernorm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/embedding_layernorm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : taken(embedding_layernorm::test_cases())) {
    if (c.rows >= 0 && c.rows < c.N) continue;  // unwritten rows cannot be compared
    for (const DType dtype : dtypes_for(embedding_layernorm_forward_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
      const auto args = embedding_layernorm::make_forward(c, dtype, fixture);
      const auto reduction = [&](std::string_view) { return static_cast<double>(c.C); };
      const auto reason =
          check_variant(embedding_layernorm_forward_op(), GetParam(), fixture, args, reduction);
      reason.empty() ? void(++checked) : void(refusal = reason);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// With a count from the device, its rows have the same bits as without one, and the other rows do not change.
TEST_P(Forward, RowsAfterTheCountAreNotTouched) {
  const auto& variant = find_variant(embedding_layernorm_forward_op(), GetParam());
  std::string refusal;
  int checked = 0;
  for (auto c : taken(embedding_layernorm::test_cases())) {
    if (c.rows < 0 || c.rows >= c.N) continue;
    Fixture fixture(1);
    auto args = embedding_layernorm::make_forward(c, DType::f32, fixture);
    for (std::int64_t n = c.rows; n < c.N; ++n) args.tokens.as<std::int32_t>()[n] = 1 << 30;  // never read
    refusal = variant.refuse(embedding_layernorm_forward_op().problem(args), device_for(variant.name));
    if (!refusal.empty()) continue;
    run_variant(embedding_layernorm_forward_op(), variant, args, 2);
    const auto some = elements_of(args.out);
    Fixture whole_fixture(1);
    auto whole = embedding_layernorm::make_forward(c, DType::f32, whole_fixture);
    whole.rows = {};
    run_variant(embedding_layernorm_forward_op(), variant, whole, 1);
    const auto all = elements_of(whole.out);
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (static_cast<std::int64_t>(i) < c.rows * c.C) {
        EXPECT_EQ(some[i], all[i]) << i;
      } else {
        EXPECT_TRUE(std::isnan(some[i])) << i;
      }
    }
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, TakesRowsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = embedding_layernorm::make_forward({9, 64, 6, 9}, DType::bf16, fixture);
  args.word = between_packs(args.word);
  args.tokens = fixture.random_integers({9}, 0, 5);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason = check_unaligned(embedding_layernorm_forward_op(), GetParam(), fixture, args, reduction,
                                      {"cuda.warp_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(EmbeddingLayerNorm, Forward,
                         ::testing::ValuesIn(variant_names(embedding_layernorm_forward_op())), test_name);

class Huge : public testing::VariantTest {};  // for the variants of a GPU

TEST_P(Huge, GivesEveryRowItsBits) {
  Fixture fixture(5);
  const auto args = embedding_layernorm::make_forward({509, 768, 1021, 509}, DType::bf16, fixture);
  const auto reason = check_repeated(
      embedding_layernorm_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 768.0; },
      {.beyond = "out", .once = {"word", "position", "type", "weight", "bias"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(EmbeddingLayerNorm, Huge,
                         ::testing::ValuesIn(gpu_variant_names(embedding_layernorm_forward_op())), test_name);

TEST(EmbeddingLayerNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = embedding_layernorm::make_forward({3, 8, 5, 4}, DType::f32, fixture);
  const auto expect_refused = [&](auto&& change) {
    EmbeddingLayerNormForward wrong = args;
    change(wrong);
    EXPECT_THROW(embedding_layernorm_forward(context, wrong), Error);
  };
  expect_refused([&](auto& a) { a.tokens = fixture.integers({1, 2}); });
  expect_refused([&](auto& a) { a.types = {}; });
  expect_refused([&](auto& a) { a.type = fixture.random(DType::f32, {2, 7}); });
  expect_refused([&](auto& a) { a.word = fixture.random(DType::bf16, {5, 8}); });
  expect_refused([&](auto& a) { a.bias = fixture.random(DType::f32, {9}); });
  expect_refused([&](auto& a) { a.rows = fixture.integers({1, 2}); });
}

}  // namespace
}  // namespace warpwright::ops
