#include <gtest/gtest.h>

#include "ops/rmsnorm/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's
using rmsnorm::Form;

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

std::vector<DType> all_dtypes() {
  return {DType::f32, DType::bf16, DType::f16, DType::f64};
}

TEST_P(Forward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  const auto check = [&](const rmsnorm::Case& c, const Form& form) {
    Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
    const auto args = rmsnorm::make_forward(c, form, fixture);
    const auto reduction = [&](std::string_view) { return static_cast<double>(c.C); };
    const auto reason = check_variant(rmsnorm_forward_op(), GetParam(), fixture, args, reduction);
    reason.empty() ? void(++checked) : void(refusal = reason);
  };
  for (const DType dtype : all_dtypes()) {
    Form form;
    form.dtype = dtype;
    for (const auto& c : taken(rmsnorm::test_cases())) check(c, form);
  }
  for (const Form& form : rmsnorm::test_forms(all_dtypes(), true)) {
    for (const auto& c : taken(rmsnorm::few_cases())) check(c, form);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, MatchesTheReference) {
  std::string refusal;
  int checked = 0;
  const auto check = [&](const rmsnorm::Case& c, const Form& form) {
    Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
    const auto args = rmsnorm::make_backward(c, form, fixture);
    const auto reduction = [&](std::string_view name) {
      return static_cast<double>(name == "dx" ? c.C : std::max<std::int64_t>(c.N, 1));
    };
    const auto reason = check_variant(rmsnorm_backward_op(), GetParam(), fixture, args, reduction);
    reason.empty() ? void(++checked) : void(refusal = reason);
  };
  for (const DType dtype : all_dtypes()) {
    for (const Store store : {Store::assign, Store::add}) {
      Form form;
      form.dtype = dtype;
      form.store = store;
      for (const auto& c : taken(rmsnorm::test_cases())) check(c, form);
    }
  }
  for (const Form& form : rmsnorm::test_forms(all_dtypes(), true)) {
    for (const auto& c : taken(rmsnorm::few_cases())) check(c, form);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, RepeatsItsBits) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : {rmsnorm::Case{301, 768}, {35, 4104}}) {
    Fixture fixture(12);
    Form form;
    form.dtype = DType::bf16;
    const auto args = rmsnorm::make_backward(c, form, fixture);
    const auto reason = check_repeats(rmsnorm_backward_op(), GetParam(), fixture, args);
    reason.empty() ? void(++checked) : void(refusal = reason);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Forward, TakesRowsThatAreNotAligned) {
  Fixture fixture(5);
  auto args = rmsnorm::make_forward({4, 64}, {}, fixture);
  args.x = between_packs(args.x);
  args.out = args.out.slice(0, 0, 3);
  args.rstd = args.rstd.slice(0, 0, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason =
      check_unaligned(rmsnorm_forward_op(), GetParam(), fixture, args, reduction, {"cuda.warp_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Backward, TakesRowsThatAreNotAligned) {
  Fixture fixture(6);
  auto args = rmsnorm::make_backward({4, 64}, {}, fixture);
  args.x = between_packs(args.x);
  args.dout = args.dout.slice(0, 0, 3);
  args.dx = args.dx.slice(0, 0, 3);
  args.rstd = args.rstd.slice(0, 0, 3);
  const auto reduction = [](std::string_view) { return 64.0; };
  const auto reason =
      check_unaligned(rmsnorm_backward_op(), GetParam(), fixture, args, reduction, {"cuda.warp_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

INSTANTIATE_TEST_SUITE_P(RMSNorm, Forward, ::testing::ValuesIn(variant_names(rmsnorm_forward_op())),
                         test_name);
INSTANTIATE_TEST_SUITE_P(RMSNorm, Backward, ::testing::ValuesIn(variant_names(rmsnorm_backward_op())),
                         test_name);

class HugeForward : public testing::VariantTest {};  // of the variants of a GPU
class HugeBackward : public testing::VariantTest {};

TEST_P(HugeForward, GivesEveryRowItsBits) {
  Fixture fixture(8);
  Form form;
  form.dtype = DType::bf16;
  const auto args = rmsnorm::make_forward({509, 768}, form, fixture);
  const auto reason =
      check_repeated(rmsnorm_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 768.0; },
                     {.beyond = "x", .once = {"weight"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeBackward, GivesEveryRowItsBitsAndSumsThemAll) {
  Fixture fixture(9);
  Form form;
  form.dtype = DType::bf16;
  form.store = Store::add;
  const auto args = rmsnorm::make_backward({509, 768}, form, fixture);
  const auto reason = check_repeated(rmsnorm_backward_op(), GetParam(), fixture, args,
                                     [](std::string_view name) { return name == "dx" ? 768.0 : 509.0; },
                                     {.beyond = "x", .once = {"weight", "dweight"}, .exact_sums = true});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(RMSNorm, HugeForward, ::testing::ValuesIn(gpu_variant_names(rmsnorm_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(RMSNorm, HugeBackward, ::testing::ValuesIn(gpu_variant_names(rmsnorm_backward_op())),
                         test_name);

TEST(RMSNormReference, BackwardIsTheDerivativeOfForward) {
  Fixture fixture(1);
  Form form;
  form.dtype = DType::f64;
  auto forward = rmsnorm::make_forward({5, 7}, form, fixture);
  auto backward = rmsnorm::make_backward({5, 7}, form, fixture);
  backward.x = forward.x;
  backward.weight = forward.weight;
  backward.rstd = forward.rstd;
  const auto loss = [&] {
    run_variant(rmsnorm_forward_op(), find_variant(rmsnorm_forward_op(), kReference), forward, 1);
    double total = 0;
    for (std::int64_t i = 0; i < forward.out.elements(); ++i) {
      total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
    }
    return total;
  };
  loss();
  run_variant(rmsnorm_backward_op(), find_variant(rmsnorm_backward_op(), kReference), backward, 1);
  check_gradient(loss, forward.x, backward.dx, "dx");
  check_gradient(loss, forward.weight, backward.dweight, "dweight");
}

TEST(RMSNorm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto args = rmsnorm::make_forward({3, 40}, {}, fixture);
  auto wrong = args;
  wrong.weight = fixture.random(DType::f32, {39});
  EXPECT_THROW(rmsnorm_forward(context, wrong), Error);
  wrong = args;
  wrong.kept = fixture.random(DType::f32, {3, 2});
  EXPECT_THROW(rmsnorm_forward(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
