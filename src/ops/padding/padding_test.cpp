#include "ops/padding/padding.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/padding/cases.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Padding : public ::testing::TestWithParam<std::string> {};

std::vector<std::int32_t> integers_of(const Tensor& t) {
  const auto* data = t.as<std::int32_t>();
  return {data, data + t.elements()};
}

TEST_P(Padding, LengthsMatchTheReference) {
  const auto& op = padding_lengths_op();
  const auto& variant = find_variant(op, GetParam());
  for (const auto& c : taken(padding::test_cases())) {
    for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::f32, DType::bf16}) {
      Fixture fixture(1), again(1);
      const auto args = padding::make_lengths(c, dtype, fixture),
                 wanted = padding::make_lengths(c, dtype, again);
      const auto problem = op.problem(args);
      if (auto reason = variant.refuse(problem, device_for(variant.name)); !reason.empty())
        GTEST_SKIP() << reason;
      SCOPED_TRACE(problem.describe());
      fixture.snapshot();
      run_variant(op, variant, args, 2);
      expect_only_written(fixture, uses_of(args));
      run_variant(op, find_variant(op, kReference), wanted, 1);
      EXPECT_EQ(integers_of(args.cu_seqlens), integers_of(wanted.cu_seqlens));
      EXPECT_EQ(integers_of(args.indices), integers_of(wanted.indices));
    }
  }
}

template <class P, class A>
void expect_same_rows(const Op<P, A>& op, const std::string& name,
                      A (*make)(const padding::Case&, DType, Fixture&)) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : taken(padding::test_cases())) {
    for (const DType dtype : dtypes_for(name)) {
      Fixture fixture(static_cast<std::uint64_t>(c.C));
      const auto exact = [](std::string_view) { return 0.0; };
      const auto reason = check_variant(op, name, fixture, make(c, dtype, fixture), exact);
      reason.empty() ? void(++checked) : void(refusal = reason);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Padding, PackMatchesTheReference) {
  expect_same_rows(padding_pack_op(), GetParam(), padding::make_pack);
}
TEST_P(Padding, UnpackMatchesTheReference) {
  expect_same_rows(padding_unpack_op(), GetParam(), padding::make_unpack);
}

// ByteTransformer's definition, its mask (B, S, S): lengths from the first row of each, batch_idx their
// prefix sums, word_idx[batch_idx[b] + i] = b·S + i.
TEST_P(Padding, IsByteTransformersWhereTheOnesComeFirst) {
  const auto& op = padding_lengths_op();
  const auto& variant = find_variant(op, GetParam());
  const std::vector<std::int32_t> lengths{3, 2, 0, 5, 1};
  const std::int64_t B = 5, S = 5;
  Fixture fixture(2);
  const Tensor mask = fixture.output(DType::f32, {B, S, S});
  std::vector<std::int32_t> batch_idx{0}, word_idx;
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int32_t length = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < S * S; ++i) {
      mask.as<float>()[b * S * S + i] = i / S < length && i % S < length ? 1.0f : 0.0f;
    }
    batch_idx.push_back(batch_idx.back() + length);
    for (std::int32_t i = 0; i < length; ++i) word_idx.push_back(static_cast<std::int32_t>(b * S) + i);
  }
  PaddingLengths args{mask.select(1, 0), fixture.output(DType::i32, {B + 1}),
                      fixture.output(DType::i32, {B * S})};
  if (auto reason = variant.refuse(op.problem(args), device_for(variant.name)); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(op, variant, args, 1);
  EXPECT_EQ(integers_of(args.cu_seqlens), batch_idx);
  const auto indices = integers_of(args.indices);
  EXPECT_TRUE(std::equal(word_idx.begin(), word_idx.end(), indices.begin()));
}

INSTANTIATE_TEST_SUITE_P(Padding, Padding, ::testing::ValuesIn(variant_names(padding_lengths_op())),
                         test_name);

TEST(Padding, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  auto lengths = padding::make_lengths({{1, 2}, 3, 4}, DType::f32, fixture);
  lengths.indices = fixture.output(DType::i32, {5});
  EXPECT_THROW(padding_lengths(context, lengths), Error);
  auto pack = padding::make_pack({{1, 2}, 3, 4}, DType::f32, fixture);
  pack.out = fixture.output(DType::bf16, {3, 4});
  EXPECT_THROW(padding_pack(context, pack), Error);
  auto unpack = padding::make_unpack({{1, 2}, 3, 4}, DType::f32, fixture);
  unpack.out = fixture.output(DType::f32, {2, 3, 5});
  EXPECT_THROW(padding_unpack(context, unpack), Error);
}

}  // namespace
}  // namespace warpwright::ops
