#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/embedding/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

TEST_P(Forward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(embedding::test_cases())) {
    for (const DType dtype : dtypes_for(embedding_forward_op(), GetParam())) {
      Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
      const auto args = embedding::make_forward(c, dtype, fixture);
      const auto reduction = [](std::string_view) { return 1.0; };
      tally.add(check_variant(embedding_forward_op(), GetParam(), fixture, args, reduction));
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Backward, MatchesTheReference) {
  Tally tally;
  for (const auto& c : taken(embedding::test_cases())) {
    for (const DType dtype : dtypes_for(embedding_backward_op(), GetParam())) {
      for (const Store store : {Store::assign, Store::add}) {
        Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
        const auto args = embedding::make_backward(c, dtype, store, fixture);
        const auto reduction = [&](std::string_view) { return static_cast<double>(c.N + 1); };
        tally.add(check_variant(embedding_backward_op(), GetParam(), fixture, args, reduction));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

// Every row that no token and no position selects holds NaN with a certain payload. Neither an addition of 0
// nor a write would preserve it.
TEST_P(Backward, AddTouchesOnlyTheRowsThatAreNamed) {
  Fixture fixture(1);
  auto args = embedding::make_backward({3, 21, 9, 7}, DType::f32, Store::add, fixture);
  const auto& variant = find_variant(embedding_backward_op(), GetParam());
  if (auto reason = variant.refuse(embedding_backward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  args.tokens = fixture.integers({8, 2, 8});
  args.positions = fixture.integers({0, 6, 5});
  const auto is_named = [](const Tensor& ids, std::int64_t row) {
    const auto* first = ids.as<std::int32_t>();
    return std::find(first, first + 3, row) != first + 3;
  };
  const auto check = [&](const Tensor& gradient, const Tensor& ids, auto&& at) {
    for (std::int64_t row = 0; row < gradient.shape[0]; ++row) {
      for (std::int64_t c = 0; !is_named(ids, row) && c < 21; ++c) {
        at(static_cast<std::uint32_t*>(gradient.data)[row * 21 + c]);
      }
    }
  };
  const auto poison = [](std::uint32_t& bits) { bits = 0x7fa00001; };  // a signalling NaN
  const auto verify = [](std::uint32_t& bits) { EXPECT_EQ(bits, 0x7fa00001u); };
  check(args.dwte, args.tokens, poison);
  check(args.dwpe, args.positions, poison);
  run_variant(embedding_backward_op(), variant, args, 2);
  check(args.dwte, args.tokens, verify);
  check(args.dwpe, args.positions, verify);
}

// Large enough that the kernels zero it past the caches. MatchesTheReference covers small gradients.
TEST_P(Backward, AssignZeroesEveryRowOfALargeGradientThatIsNotNamed) {
  Fixture fixture(4);
  const std::int64_t C = 1023, V = 8300;
  auto args = embedding::make_backward({3, C, V, 3}, DType::f32, Store::assign, fixture);
  const auto& variant = find_variant(embedding_backward_op(), GetParam());
  if (auto reason = variant.refuse(embedding_backward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  args.tokens = fixture.integers({0, 8299, 77});
  run_variant(embedding_backward_op(), variant, args, 3);
  const float *dwte = args.dwte.as<float>(), *dout = args.dout.as<float>();
  std::int64_t wrong = 0;
  for (std::int64_t row = 0; row < V; ++row) {
    const std::int64_t n = row == 0 ? 0 : row == 8299 ? 1 : row == 77 ? 2 : -1;
    for (std::int64_t c = 0; c < C; ++c) wrong += !(dwte[row * C + c] == (n < 0 ? 0.0f : dout[n * C + c]));
  }
  EXPECT_EQ(wrong, 0);
}

// Many rows belong to one token. Their order of summation must not depend on the order of the blocks.
TEST_P(Backward, RepeatsItsBits) {
  Tally tally;
  for (const Store store : {Store::assign, Store::add}) {
    Fixture fixture(8);
    const auto args = embedding::make_backward({5000, 96, 1021, 256, true}, DType::bf16, store, fixture);
    tally.add(check_repeats(embedding_backward_op(), GetParam(), fixture, args));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

INSTANTIATE_TEST_SUITE_P(Embedding, Forward, ::testing::ValuesIn(variant_names(embedding_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Embedding, Backward, ::testing::ValuesIn(variant_names(embedding_backward_op())),
                         test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(5);
  const auto args = embedding::make_forward({509, 768, 1021, 509}, DType::bf16, fixture);
  const auto reason =
      check_repeated(embedding_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 1.0; },
                     {.beyond = "out", .once = {"wte", "wpe"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeBackward, SumsEveryRow) {
  Tally tally;
  for (const Store store : {Store::assign, Store::add}) {
    Fixture fixture(6);
    const auto args = embedding::make_backward({509, 768, 1021, 509}, DType::bf16, store, fixture);
    tally.add(check_repeated(embedding_backward_op(), GetParam(), fixture, args,
                             [](std::string_view) { return 510.0; },
                             {.beyond = "dout", .once = {"dwte", "dwpe"}, .exact_sums = true}));
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Embedding, HugeForward,
                         ::testing::ValuesIn(gpu_variant_names(embedding_forward_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Embedding, HugeBackward,
                         ::testing::ValuesIn(gpu_variant_names(embedding_backward_op())), test_name);

TEST(EmbeddingReference, BackwardIsTheDerivativeOfForward) {
  Fixture fixture(2);
  const embedding::Case c{7, 5, 4, 3};
  const auto forward = embedding::make_forward(c, DType::f64, fixture);
  auto backward = embedding::make_backward(c, DType::f64, Store::assign, fixture);
  backward.tokens = forward.tokens;
  backward.positions = forward.positions;
  const auto loss = [&] {
    run_variant(embedding_forward_op(), find_variant(embedding_forward_op(), kReference), forward, 1);
    double total = 0;
    for (std::int64_t i = 0; i < forward.out.elements(); ++i) {
      total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
    }
    return total;
  };
  run_variant(embedding_backward_op(), find_variant(embedding_backward_op(), kReference), backward, 1);
  check_gradient(loss, forward.wte, backward.dwte, "dwte");
  check_gradient(loss, forward.wpe, backward.dwpe, "dwpe");
}

TEST(Embedding, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = embedding::make_forward({3, 40, 9, 5}, DType::f32, fixture);
  auto wrong = args;
  wrong.positions = fixture.integers({0, 1});
  EXPECT_THROW(embedding_forward(context, wrong), Error);
  wrong = args;
  wrong.wpe = fixture.random(DType::f32, {5, 39});
  EXPECT_THROW(embedding_forward(context, wrong), Error);
  wrong = args;
  wrong.positions = {};
  EXPECT_THROW(embedding_forward(context, wrong), Error);
  wrong = args;
  wrong.wpe = {};
  EXPECT_THROW(embedding_forward(context, wrong), Error);
  wrong = args;
  wrong.tokens = fixture.random(DType::f32, {3});
  EXPECT_THROW(embedding_forward(context, wrong), Error);
  auto backward = embedding::make_backward({3, 40, 9, 5}, DType::bf16, Store::add, fixture);
  backward.dwte = fixture.random(DType::bf16, {9, 40});
  EXPECT_THROW(embedding_backward(context, backward), Error);
}

}  // namespace
}  // namespace warpwright::ops
