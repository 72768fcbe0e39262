#include "ops/cached_attention/cached_attention.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cached_attention/cases.hpp"
#include "ops/element.hpp"
#include "ops/testing/repeated.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace
using cached::Lengths;

class Append : public testing::VariantTest {};

TEST_P(Append, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  for (const std::int64_t N : {0, 1, 2, 37, 300}) {
    for (const auto& [KH, HS] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 20}, {12, 64}, {2, 128}}) {
      for (const DType dtype : dtypes_for(cache_append_op(), GetParam())) {
        Fixture fixture(static_cast<std::uint64_t>(N));
        const auto args = cached::make_append(N, KH, HS, dtype, fixture);
        const auto reason =
            check_variant(cache_append_op(), GetParam(), fixture, args, [](std::string_view) { return 1.0; });
        reason.empty() ? void(++checked) : void(refusal = reason);
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

INSTANTIATE_TEST_SUITE_P(CacheAppend, Append, ::testing::ValuesIn(variant_names(cache_append_op())),
                         test_name);

class Forward : public testing::VariantTest {};

// A long sequence before others of the same length.
cached::Case one_long(std::int32_t keys, std::size_t others, std::int32_t their_keys, std::int64_t heads) {
  cached::Case c{std::vector<Lengths>(others + 1, {1, their_keys}), heads, heads, 64, 16};
  c.sequences[0].keys = keys;
  return c;
}

// These vary how cuda.split divides its work: small heads, many splits, groups of query heads, queries that
// see different splits, and new keys that fill whole stages.
std::vector<cached::Case> divided_cases() {
  return {{{{1, 600}, {1, 40}}, 4, 2, 32, 8, 250},
          {{{1, 300}, {2, 70}}, 6, 2, 16, 16},
          {{{1, 600}, {1, 40}}, 6, 2, 24, 4},
          {{{1, 4500}, {1, 20}}, 2, 2, 64, 16},
          {{{1, 2500}}, 8, 1, 128, 16},
          one_long(1400, 23, 20, 12),
          one_long(700, 129, 3, 8),
          {{{1, 600}, {2, 40}}, 11, 1, 64, 16},
          {{{1, 300}}, 32, 2, 64, 16},
          {{{1, 300}, {1, 600}}, 14, 2, 64, 16},
          {{{1, 600}}, 6, 1, 256, 16},
          {{{3, 700}, {0, 0}, {0, 9}, {0, 0}}, 6, 2, 64, 16},
          {{{3, 514}, {0, 0}, {0, 0}}, 4, 2, 64, 16, 2},
          {{{150, 400}, {1, 257}}, 2, 1, 64, 16}};
}

// These vary how a CPU reads rows: pairs of vectors with every tail, spans that begin inside a block, cross
// blocks or have one key, windows longer than a span.
std::vector<cached::Case> cases_of_rows() {
  std::vector<cached::Case> cases{{{{3, 260}, {1, 65}}, 4, 2, 57, 100, 150},
                                  {{{2, 200}}, 2, 1, 50, 128, 130}};
  for (std::int64_t HS = 35; HS <= 66; ++HS) cases.push_back({{{2, 70}, {1, 5}}, 2, 1, HS, 3});
  return cases;
}

void expect_reference(std::string_view variant, const std::vector<cached::Case>& cases, bool appends) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : taken(cases)) {
    for (const DType dtype : dtypes_for(cached_attention_op(), variant)) {
      Fixture fixture(static_cast<std::uint64_t>(c.HS));
      const auto args = cached::make_attention(c, dtype, fixture, appends);
      // Of the scores, which the exponential makes larger, and of the sum over the keys.
      const auto reduction = [&](std::string_view) { return static_cast<double>(c.HS) + 64; };
      const auto reason = check_variant(cached_attention_op(), variant, fixture, args, reduction);
      reason.empty() ? void(++checked) : void(refusal = reason);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, MatchesTheReference) {
  expect_reference(GetParam(), cached::test_cases(), false);
}
TEST_P(Forward, AppendsTheKeysOfItsQueries) {
  expect_reference(GetParam(), cached::test_cases(), true);
}
TEST_P(Forward, MatchesTheReferenceHoweverItIsDivided) {
  expect_reference(GetParam(), divided_cases(), false);
  expect_reference(GetParam(), divided_cases(), true);
}

TEST_P(Forward, MatchesTheReferenceHoweverRowsAreRead) {
  expect_reference(GetParam(), cases_of_rows(), false);
  expect_reference(GetParam(), cases_of_rows(), true);
}

// The cache with its blocks in reverse order.
Tensor reversed_blocks(const Tensor& cache, Fixture& fixture) {
  const std::vector<double> from = elements_of(cache);
  const Tensor to = fixture.output(cache.dtype, cache.shape);
  const auto blocks = static_cast<std::size_t>(cache.shape[0]), size = from.size() / blocks;
  for (std::size_t i = 0; i < from.size(); ++i) {
    store_element(to, static_cast<std::int64_t>((blocks - 1 - i / size) * size + i % size), from[i]);
  }
  return to;
}

TEST_P(Forward, ASequenceDoesNotDependOnItsBlocks) {
  const auto& variant = find_variant(cached_attention_op(), GetParam());
  int checked = 0;
  for (const cached::Case& c : {cached::Case{{{1, 700}, {3, 90}, {1, 1}}, 4, 2, 57, 5},
                                cached::Case{{{1, 700}, {3, 90}, {1, 1}}, 4, 2, 64, 16}}) {
    for (const DType dtype : dtypes_for(cached_attention_op(), GetParam())) {
      Fixture fixture(4);
      const auto args = cached::make_attention(c, dtype, fixture);
      if (!variant.refuse(args.problem(), device_for(variant.name)).empty()) continue;
      ++checked;
      run_variant(cached_attention_op(), variant, args, 2);
      auto other = args;
      other.key_cache = reversed_blocks(args.key_cache, fixture);
      other.value_cache = reversed_blocks(args.value_cache, fixture);
      std::vector<std::int32_t> table;
      const auto* const blocks = args.block_table.as<std::int32_t>();
      for (std::int64_t i = 0; i < args.block_table.elements(); ++i) {
        table.push_back(blocks[i] < 0 ? -1
                                      : static_cast<std::int32_t>(args.key_cache.shape[0]) - 1 - blocks[i]);
      }
      other.block_table = fixture.integers(table).view(args.block_table.shape);
      other.out = fixture.output(dtype, args.out.shape);
      run_variant(cached_attention_op(), variant, other, 2);
      EXPECT_EQ(elements_of(other.out), elements_of(args.out)) << c.HS << " " << name_of(dtype);
    }
  }
  if (checked == 0) GTEST_SKIP() << "the kernel takes no such blocks";
}

// Runs each sequence alone, and compares with the bits that it has in args.out.
void expect_same_alone(const Variant<CachedAttention>& variant, const cached::Case& all,
                       const CachedAttention& args, Fixture& fixture) {
  const auto together = elements_of(args.out);
  std::int64_t row = 0;
  for (std::int64_t s = 0; s < args.lengths.shape[0]; ++s) {
    const std::int32_t queries = all.sequences[static_cast<std::size_t>(s)].queries;
    auto alone = args;
    alone.q = args.q.slice(0, row, queries);
    alone.out = fixture.output(args.q.dtype, {queries, all.NH, all.HS});
    alone.block_table = args.block_table.slice(0, s, 1);
    alone.lengths = args.lengths.slice(0, s, 1);
    alone.cu_seqlens = fixture.integers({0, queries});
    run_variant(cached_attention_op(), variant, alone, 1);
    const auto expected = elements_of(alone.out);
    const auto first = together.begin() + row * all.NH * all.HS;
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), first))
        << name_of(args.q.dtype) << ", sequence " << s;
    row += queries;
  }
}

// The bits of one sequence, alone and among others.
TEST_P(Forward, ASequenceDoesNotDependOnTheOthers) {
  const auto& variant = find_variant(cached_attention_op(), GetParam());
  for (const cached::Case& all : {cached::Case{{{1, 700}, {3, 90}, {1, 33}, {8, 1000}}, 4, 2, 64, 16},
                                  cached::Case{{{1, 700}, {1, 90}, {1, 33}, {1, 1000}}, 4, 2, 64, 16}}) {
    for (const DType dtype : dtypes_for(cached_attention_op(), GetParam())) {
      Fixture fixture(4);
      const auto args = cached::make_attention(all, dtype, fixture);
      if (auto reason = variant.refuse(cached_attention_op().problem(args), device_for(variant.name));
          !reason.empty()) {
        GTEST_SKIP() << reason;
      }
      run_variant(cached_attention_op(), variant, args, 2);
      expect_same_alone(variant, all, args, fixture);
    }
  }
}

// A NaN in a query, a key or a value reaches the results that depend on it, and no other.
TEST_P(Forward, ANaNStaysInItsSequence) {
  const auto& variant = find_variant(cached_attention_op(), GetParam());
  for (const DType dtype : dtypes_for(cached_attention_op(), GetParam())) {
    for (int where = 0; where < 3; ++where) {
      Fixture fixture(6);
      const auto args = cached::make_attention({{{1, 300}, {1, 20}}, 4, 2, 64, 16}, dtype, fixture);
      if (auto reason = variant.refuse(cached_attention_op().problem(args), device_for(variant.name));
          !reason.empty()) {
        GTEST_SKIP() << reason;
      }
      const Tensor& tensor = where == 0 ? args.q : where == 1 ? args.key_cache : args.value_cache;
      // Head 0 of row 0, or of key 16 of the first sequence, which two query heads see.
      const std::int64_t first = where == 0 ? 0 : args.block_table.as<std::int32_t>()[1] * 16 * 2 * 64;
      for (std::int64_t d = 0; d < 64; ++d) {
        store_element(tensor, first + d, std::numeric_limits<double>::quiet_NaN());
      }
      run_variant(cached_attention_op(), variant, args, 1);
      const auto out = elements_of(args.out);
      const std::size_t reached = where == 0 ? 64 : 128;
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::isnan(out[i]), i < reached) << name_of(dtype) << ", " << where << ", " << i;
      }
    }
  }
}

// The first sequence, of 600 keys and some queries, has scores of −∞ for its first `count` keys.
CachedAttention with_infinite_scores(std::int32_t queries, std::int64_t count, DType dtype,
                                     Fixture& fixture) {
  auto args = cached::make_attention({{{queries, 600}, {1, 20}}, 4, 2, 64, 16}, dtype, fixture);
  for (std::int64_t h = 0; h < 4; ++h) {
    for (std::int64_t i = 0; i < queries; ++i) store_element(args.q, i * args.q.strides[0] + h * 64, 1);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t block = args.block_table.as<std::int32_t>()[j / 16];
    for (std::int64_t h = 0; h < 2; ++h) {
      store_element(args.key_cache, ((block * 2 + h) * 16 + j % 16) * 64,
                    -std::numeric_limits<double>::infinity());
    }
  }
  return args;
}

TEST_P(Forward, KeysWithAScoreOfMinusInfinityDoNotCount) {
  const auto& op = cached_attention_op();
  for (const DType dtype : dtypes_for(op, GetParam())) {
    for (const std::int32_t queries : {1, 3}) {
      for (const std::int64_t count : {1, 20, 300, 597}) {
        SCOPED_TRACE(fmt::format("{} queries, {} keys", queries, count));
        Fixture fixture(7);
        const auto args = with_infinite_scores(queries, count, dtype, fixture);
        const std::string refusal =
            check_variant(op, GetParam(), fixture, args, [](std::string_view) { return 128.0; });
        if (!refusal.empty()) GTEST_SKIP() << refusal;
      }
      Fixture fixture(7);
      const auto args = with_infinite_scores(queries, 600, dtype, fixture);
      run_variant(op, find_variant(op, GetParam()), args, 1);
      const auto out = elements_of(args.out);
      const auto nans = static_cast<std::size_t>(queries * 4 * 64);
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::isnan(out[i]), i < nans) << name_of(dtype) << ", element " << i;
      }
    }
  }
}

TEST_P(Forward, TheScaleMayBeNegative) {
  for (const DType dtype : dtypes_for(cached_attention_op(), GetParam())) {
    Fixture fixture(8);
    auto args = cached::make_attention({{{1, 300}, {2, 40}}, 4, 2, 64, 16}, dtype, fixture);
    args.scale = -0.2f;
    const std::string refusal = check_variant(cached_attention_op(), GetParam(), fixture, args,
                                              [](std::string_view) { return 128.0; });
    if (!refusal.empty()) GTEST_SKIP() << refusal;
  }
}

INSTANTIATE_TEST_SUITE_P(CachedAttention, Forward, ::testing::ValuesIn(variant_names(cached_attention_op())),
                         test_name);

TEST(CachedAttention, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = cached::make_attention({{{2, 20}, {1, 5}}, 4, 2, 8, 4}, DType::f32, fixture);
  const auto expect_refused = [&](const std::string& why, auto&& change) {
    CachedAttention wrong = args;
    change(wrong);
    const std::string message = message_of([&] { cached_attention(context, wrong); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  expect_refused("heads of the cache", [&](auto& a) { a.q = fixture.random(DType::f32, {3, 5, 8}); });
  expect_refused("value_cache", [&](auto& a) { a.value_cache = fixture.random(DType::f32, {8, 4, 2, 7}); });
  expect_refused("cu_seqlens", [&](auto& a) { a.cu_seqlens = fixture.integers({0, 2}); });
  expect_refused("begin with 0", [&](auto& a) { a.cu_seqlens = fixture.integers({1, 2, 3}); });
  expect_refused("ascend", [&](auto& a) { a.cu_seqlens = fixture.integers({0, 2, 4}); });
  expect_refused("room for", [&](auto& a) { a.lengths = fixture.integers({21, 5}); });
  expect_refused("2 queries", [&](auto& a) { a.lengths = fixture.integers({1, 5}); });
  expect_refused("has the block 8", [&](auto& a) {
    a.block_table = fixture.integers({1, 2, 8, 3, 4, 5, 6, -1, -1, -1}).view({2, 5});
  });
  expect_refused("window", [&](auto& a) { a.window = -1; });
  expect_refused("v is missing", [&](auto& a) { a.k = fixture.random(DType::f32, {3, 2, 8}); });
  expect_refused("k is missing", [&](auto& a) { a.v = fixture.random(DType::f32, {3, 2, 8}); });
  expect_refused("window", [&](auto& a) { a.window = std::int64_t{1} << 31; });
}

// A GPU's variants are given integers that nobody has checked. They stay inside the tensors.
TEST(CachedAttention, OnCudaWrongIntegersReachNothingElse) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(),
                         kLeast = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::vector<std::int32_t>> wrong{{kMost, kMost, kMost},
                                                     {kLeast, kLeast, kLeast},
                                                     {0, kMost, kLeast},
                                                     {-1, 600, 3},
                                                     {5, 2, 9},
                                                     {3, 0, -2}};
  const auto check = [&](const std::string& name, const cached::Case& c,
                         const std::vector<std::int32_t>& integers, int which) {
    Fixture fixture(9);
    auto args = cached::make_attention(c, DType::bf16, fixture, which == 3);
    if (which == 0) args.cu_seqlens = fixture.integers(integers);
    if (which == 1 || which == 3) args.lengths = fixture.integers({integers[0], integers[1]});
    auto* const table = args.block_table.as<std::int32_t>();
    for (std::int64_t i = 0; which == 2 && i < args.block_table.elements(); ++i) {
      table[i] = integers[static_cast<std::size_t>(i % 3)];
    }
    fixture.snapshot();
    run_variant(cached_attention_op(), find_variant(cached_attention_op(), name), args, 1);
    expect_only_written(fixture, uses_of(args));
  };
  for (const std::string& name : gpu_variant_names(cached_attention_op())) {
    if (const std::string missing = missing_for(name); !missing.empty()) GTEST_SKIP() << missing;
    for (const std::int32_t queries : {1, 2}) {  // with one for each sequence, blocks divide the keys
      for (const auto& integers : wrong) {
        for (int which = 0; which < 4; ++which) {
          SCOPED_TRACE(fmt::format("{}, {} queries, {} {} {}, {}", name, queries, integers[0], integers[1],
                                   integers[2], which));
          check(name, {{{queries, 600}, {1, 20}}, 4, 2, 64, 16}, integers, which);
        }
      }
    }
  }
}

TEST(CacheAppend, RefusesSlotsBeyondTheCache) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  auto args = cached::make_append(3, 2, 8, DType::f32, fixture);
  args.slots = fixture.integers({0, 16, 1});
  const auto before = elements_of(args.key_cache);
  const std::string message = message_of([&] { cache_append(context, args); });
  EXPECT_NE(message.find("row 1 has the slot 16, the cache has 16"), std::string::npos) << message;
  EXPECT_EQ(elements_of(args.key_cache), before);
}

}  // namespace
}  // namespace warpwright::ops
