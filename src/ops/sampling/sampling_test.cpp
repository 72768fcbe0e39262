#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "ops/element.hpp"
#include "ops/sampling/cases.hpp"
#include "ops/testing/check.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Draws : public testing::VariantTest {};

std::vector<std::int32_t> drawn_by(std::string_view variant, const Sampling& args) {
  run_variant(sampling_op(), find_variant(sampling_op(), variant), args, 1);
  const auto* token = args.token.as<std::int32_t>();
  for (std::int64_t m = 0; args.next_input && m < args.token.shape[0]; ++m) {
    EXPECT_EQ(args.next_input.as<std::int32_t>()[m], std::max(token[m], 0)) << variant << ", row " << m;
  }
  return {token, token + args.token.shape[0]};
}

// A tensor whose numbers `change` has changed.
template <class T>
Tensor changed(Fixture& f, const Tensor& tensor, auto&& change) {
  const Tensor copy = f.output(tensor.dtype, tensor.shape);
  std::transform(tensor.as<T>(), tensor.as<T>() + tensor.elements(), copy.as<T>(), change);
  return copy;
}

// Rounding moves a share by less than this, so the token is one between those of the shares around it. A cut
// moves as little: it may come before or after the same token.
constexpr double kShare = 1e-5;

struct Range {
  std::vector<std::int32_t> first, last;
};
Range possible(const Sampling& args, Fixture& f, double cut) {
  Sampling twin = args;
  twin.top_p = changed<double>(f, args.top_p, [&](double p) { return p < 1 ? p * (1 + cut) : p; });
  twin.min_p = changed<double>(f, args.min_p, [&](double p) { return p * (1 + cut); });
  const auto moved = [&](bool up) {
    constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
    constexpr auto kMove = static_cast<std::uint64_t>(kShare * 0x1p64);
    twin.random = changed<std::int64_t>(f, args.random, [&](std::int64_t bits) {
      const auto r = static_cast<std::uint64_t>(bits);
      return static_cast<std::int64_t>(up          ? (r > kMost - kMove ? kMost : r + kMove)
                                       : r < kMove ? 0
                                                   : r - kMove);
    });
    return drawn_by(kReference, twin);
  };
  return {moved(false), moved(true)};
}

// Counts the rows whose token is the oracle's, and expects the others' to be its neighbours.
struct Comparison {
  int rows = 0, equal = 0;

  void add(std::string_view variant, const Sampling& args, Fixture& f) {
    const auto tokens = drawn_by(variant, args), wanted = drawn_by(kReference, args);
    rows += static_cast<int>(tokens.size());
    if (tokens == wanted) {
      equal += static_cast<int>(tokens.size());
      return;
    }
    const Range sooner = possible(args, f, -1e-6), later = possible(args, f, 1e-6);
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      equal += tokens[m] == wanted[m];
      const auto inside = [&](const Range& r) { return r.first[m] <= tokens[m] && tokens[m] <= r.last[m]; };
      EXPECT_TRUE(tokens[m] == wanted[m] || inside(sooner) || inside(later))
          << sampling_op().problem(args).describe() << ", row " << m << ": " << tokens[m]
          << ", the oracle draws " << wanted[m] << "; temperature " << args.temperature.as<double>()[m]
          << ", top_k " << args.top_k.as<std::int64_t>()[m] << ", top_p " << args.top_p.as<double>()[m]
          << ", min_p " << args.min_p.as<double>()[m] << ", penalty "
          << args.repetition_penalty.as<double>()[m];
    }
  }
};

TEST_P(Draws, TheOraclesTokens) {
  Comparison comparison;
  Tally tally;
  for (const auto& c : taken(sampling::test_cases())) {
    for (const DType dtype : dtypes_for(sampling_op(), GetParam())) {
      for (std::size_t choice = 0; choice < std::size(sampling::kChoices); ++choice) {
        Fixture f(static_cast<std::uint64_t>(c.V));
        auto args = sampling::make(c, dtype, choice, f);
        if (choice % 3 == 2) args.seen = {};
        if (choice % 2 == 1)
          args.next_input = f.integers(std::vector<std::int32_t>(static_cast<std::size_t>(c.M), -7));
        const auto refusal =
            check_variant(sampling_op(), GetParam(), f, args, [](std::string_view) { return 1.0; });
        tally.add(refusal);
        if (refusal.empty() && !too_long(sampling_op().problem(args).flops()))
          comparison.add(GetParam(), args, f);
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
  EXPECT_GE(comparison.equal, 0.99 * comparison.rows);
}

// Probabilities 1/2, 1/4, 1/8, 1/16 and 1/16.
Sampling known(Fixture& f, std::int64_t rows, const sampling::Choice& choice = {}) {
  Sampling a = sampling::make({rows, 5}, DType::f32, 0, f);
  for (std::int64_t m = 0; m < rows; ++m) {
    for (int v = 0; v < 5; ++v) store_element(a.logits, m * 5 + v, v == 4 ? 0 : (3 - v) * std::log(2.0));
  }
  a.temperature = sampling::filled(f, DType::f64, rows, choice.temperature);
  a.top_k = sampling::filled(f, DType::i64, rows, choice.top_k);
  a.top_p = sampling::filled(f, DType::f64, rows, choice.top_p);
  a.min_p = sampling::filled(f, DType::f64, rows, choice.min_p);
  a.repetition_penalty = sampling::filled(f, DType::f64, rows, choice.penalty);
  a.seen = {};
  return a;
}

std::string refusal_of(std::string_view variant) {
  Fixture f(1);
  return find_variant(sampling_op(), variant).refuse(sampling_op().problem(known(f, 1)), device_for(variant));
}

TEST_P(Draws, CutsKeepTheMostLikelyTokens) {
  if (const auto refusal = refusal_of(GetParam()); !refusal.empty()) GTEST_SKIP() << refusal;
  using Tokens = std::set<std::int32_t>;
  const auto drawn = [&](const sampling::Choice& choice) {
    Fixture f(2);
    const auto tokens = drawn_by(GetParam(), known(f, 500, choice));
    return Tokens(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(drawn({}), (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 0}), Tokens{0});
  EXPECT_EQ(drawn({.top_k = 2}), (Tokens{0, 1}));
  EXPECT_EQ(drawn({.top_k = 4}), (Tokens{0, 1, 2, 3})) << "of two equal tokens the first";
  EXPECT_EQ(drawn({.top_p = 0.7}), (Tokens{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.92}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.min_p = 0.2}), (Tokens{0, 1, 2}));
  EXPECT_EQ(drawn({.min_p = 1}), Tokens{0});
  EXPECT_EQ(drawn({.top_k = 2, .min_p = 0.2}), (Tokens{0, 1}));
  EXPECT_EQ(drawn({.top_k = 2, .top_p = 0.6}), Tokens{0}) << "2/3 of the two";
  // A temperature of 2 takes the square root of the odds: 1/2 becomes 0.71 of the most likely one's.
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.6}), (Tokens{0, 1}));
}

TEST_P(Draws, TokensAppearAsOftenAsTheyAreLikely) {
  if (const auto refusal = refusal_of(GetParam()); !refusal.empty()) GTEST_SKIP() << refusal;
  constexpr int kDraws = 20000;
  Fixture f(3);
  int counts[5] = {};
  for (const std::int32_t token : drawn_by(GetParam(), known(f, kDraws))) ++counts[token];
  for (int v = 0; v < 5; ++v) {
    const double p = std::exp2(-std::min(v + 1, 4));
    EXPECT_NEAR(counts[v], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << v;
  }
}

TEST_P(Draws, APenaltyChangesTheTokensThatTheSequenceHas) {
  if (const auto refusal = refusal_of(GetParam()); !refusal.empty()) GTEST_SKIP() << refusal;
  Fixture f(4);
  const auto greedy = [&](double penalty, std::int32_t seen, double shift = 0) {
    Sampling a = known(f, 1, {.temperature = 0, .penalty = penalty});
    for (int v = 0; v < 5; ++v) store_element(a.logits, v, load_element(a.logits, v) + shift);
    a.seen = f.integers({seen}).view({1, 1});
    return drawn_by(GetParam(), a).front();
  };
  EXPECT_EQ(greedy(1.4, 1), 0) << "log 8 / 1.4 = 1.49 is more than log 4 = 1.39";
  EXPECT_EQ(greedy(1.6, 1), 1);
  EXPECT_EQ(greedy(1.6, 3), 0) << "both are divided";
  EXPECT_EQ(greedy(1.6, 2), 0) << "another token";
  EXPECT_EQ(greedy(1.6, 1, -5), 1) << "-2.9 · 1.6 is less than -3.6";
  EXPECT_EQ(greedy(1e300, 1, -5), 1);
  EXPECT_EQ(greedy(1e-300, 2), 1) << "bounded, but the largest";
}

TEST_P(Draws, NoTokenFromLogitsThatAreNotFinite) {
  if (const auto refusal = refusal_of(GetParam()); !refusal.empty()) GTEST_SKIP() << refusal;
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      Fixture f(5);
      Sampling a = known(f, 3, {.temperature = temperature, .penalty = 1.5});
      a.next_input = f.integers({-7, -7, -7});
      store_element(a.logits, 5 + 3, wrong);
      const auto tokens = drawn_by(GetParam(), a);
      EXPECT_GE(tokens[0], 0);
      EXPECT_EQ(tokens[1], -1);
      EXPECT_GE(tokens[2], 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sampling, Draws, ::testing::ValuesIn(variant_names(sampling_op())), test_name);

TEST(Sampling, RefusesArgumentsThatDoNotFit) {
  Fixture f(6);
  Context context{ContextOptions{}};
  const auto args = sampling::make({3, 40}, DType::f32, 0, f);
  const auto expect_refused = [&](auto&& change) {
    Sampling wrong = args;
    change(wrong);
    EXPECT_THROW(sample(context, wrong), Error);
  };
  expect_refused([&](Sampling& a) { a.logits = f.random(DType::f32, {3, 0}); });
  expect_refused([&](Sampling& a) { a.logits = f.random(DType::f32, {2, 40}); });
  expect_refused([&](Sampling& a) { a.temperature = f.random(DType::f32, {3}); });
  expect_refused([&](Sampling& a) { a.top_k = f.integers({1, 2, 3}); });
  expect_refused([&](Sampling& a) { a.seen = f.integers({1, 2, 3}); });
  expect_refused([&](Sampling& a) { a.token = f.integers({1, 2}); });
  expect_refused([&](Sampling& a) { a.next_input = f.integers({1, 2}); });
}

}  // namespace
}  // namespace warpwright::ops
