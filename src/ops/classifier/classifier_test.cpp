#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/classifier/cases.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

using Case = classifier_kernels::Case;
using Options = classifier_kernels::Options;

class Variants : public testing::VariantTest {
 protected:
  // Runs the variant under test. Returns its reason if it refuses, otherwise "".
  std::string run(const Classifier& args, int threads = 1) {
    const auto& variant = find_variant(classifier_op(), GetParam());
    std::string reason = variant.refuse(classifier_op().problem(args), device_for(variant.name));
    if (reason.empty()) run_variant(classifier_op(), variant, args, threads);
    return reason;
  }
};

TEST_P(Variants, MatchTheReference) {
  Tally tally;
  for (const auto& c : taken(classifier_kernels::test_cases())) {
    for (const DType dtype : dtypes_for(classifier_op(), GetParam())) {
      for (const Options& options : {Options{true, false, false}, Options{true, true, true},
                                     Options{false, true, false}, Options{false, false, true}}) {
        // With weights of 1/N, most of the gradient would be subnormal.
        if (dtype == DType::f16 && c.N > 1000 && !options.weights) continue;
        Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.V));
        const auto args = classifier_kernels::make(c, dtype, options, fixture);
        const auto reduction = [&](std::string_view) { return static_cast<double>(c.V); };
        tally.add(check_variant(classifier_op(), GetParam(), fixture, args, reduction));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Variants, RefuseOrTakeRowsBetweenPacks) {
  Fixture fixture(12);
  const Options options{.gradient = true, .weights = true, .probabilities = false};
  auto args = classifier_kernels::make({5, 1024, 1024}, DType::bf16, options, fixture);
  args.logits = between_packs(args.logits);
  for (Tensor* rows : {&args.targets, &args.weights, &args.losses}) *rows = rows->slice(0, 0, 4);
  const auto reduction = [](std::string_view) { return 1024.0; };
  const auto reason =
      check_unaligned(classifier_op(), GetParam(), fixture, args, reduction, {"cuda.shared_row"});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(Variants, PaddingGradientIsExactlyZeroAndIgnoredRowsAreToo) {
  for (const DType dtype : dtypes_for(classifier_op(), GetParam())) {
    Fixture fixture(1);
    const auto args = classifier_kernels::make({9, 37, 64}, dtype, {}, fixture);
    for (std::int64_t v = 0; v < 64; ++v) {  // an ignored row may hold anything
      static_cast<std::uint16_t*>(
          args.logits.data)[3 * 64 * static_cast<std::int64_t>(size_of(dtype)) / 2 + v] = 0x7fff;
    }
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    const auto gradient = elements_of(args.logits);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const std::size_t row = i / 64, v = i % 64;
      if (v >= 37 || row == 3 || row == 8) {
        EXPECT_EQ(gradient[i], 0.0) << row << " " << v;
      } else {
        EXPECT_NE(gradient[i], 0.0) << row << " " << v;
      }
    }
    EXPECT_EQ(args.losses.as<float>()[3], 0.0f);
  }
}

TEST_P(Variants, WithoutGradientLogitsStayAsTheyAre) {
  Fixture fixture(2);
  const auto args = classifier_kernels::make({6, 100, 128}, DType::bf16, {false, false, true}, fixture);
  std::vector<std::byte> before(args.logits.bytes());
  std::memcpy(before.data(), args.logits.data, before.size());
  if (const auto reason = run(args, 2); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_EQ(std::memcmp(before.data(), args.logits.data, before.size()), 0);
}

TEST_P(Variants, NaNAndInfinityReachTheLossOfTheirRowAlone) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t column :
         {0, 5, 127, 128, 290, 299}) {  // in a block of vectors, after it, and in the tail
      Fixture fixture(3);
      const auto args = classifier_kernels::make({3, 300, 304}, DType::f32, {}, fixture);
      args.logits.as<float>()[304 + column] = bad;
      if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
      for (int n = 0; n < 3; ++n) EXPECT_EQ(std::isnan(args.losses.as<float>()[n]), n == 1) << column;
    }
  }
}

TEST_P(Variants, MinusInfinityIsProbabilityZero) {
  for (const bool probabilities : {false, true}) {
    Fixture fixture(4);
    const auto args =
        classifier_kernels::make({2, 300, 300}, DType::f32, {true, false, probabilities}, fixture);
    for (int v = 0; v < 299; ++v) args.logits.as<float>()[v] = -std::numeric_limits<float>::infinity();
    args.targets.as<std::int32_t>()[0] = 299;
    if (const auto reason = run(args); !reason.empty()) {
      if (probabilities) return;  // the other part has been checked
      GTEST_SKIP() << reason;
    }
    EXPECT_EQ(args.losses.as<float>()[0], 0.0f);
    for (int v = 0; v < 300; ++v) {
      if (probabilities) {
        EXPECT_EQ(args.probabilities.as<float>()[v], v == 299 ? 1.0f : 0.0f);
      }
      EXPECT_EQ(args.logits.as<float>()[v], 0.0f);
    }
  }
}

TEST_P(Variants, RepeatsItsBits) {
  for (const Case& c : {Case{301, 1021, 1024}, {9, 50257, 50304}}) {
    Fixture fixture(8);
    const auto args = classifier_kernels::make(c, DType::bf16, {true, true, false}, fixture);
    const auto reason = check_repeats(classifier_op(), GetParam(), fixture, args);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

TEST(Classifier, CudaLadderIsRightInEveryConfiguration) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  check_configurations(
      classifier_op(),
      [](Fixture& f) {
        return classifier_kernels::make({5, 5003, 5008}, DType::f32, Options{}, f);
      },
      [](std::string_view) { return 5003.0; });
}

INSTANTIATE_TEST_SUITE_P(Classifier, Variants, ::testing::ValuesIn(variant_names(classifier_op())),
                         test_name);

class Huge : public testing::VariantTest {};  // for the variants of a GPU

// The size of the logits of 65,536 tokens.
TEST_P(Huge, GivesEveryRowItsBits) {
  Fixture fixture(7);
  const auto args = classifier_kernels::make({37, 50257, 50304}, DType::bf16, {true, true, false}, fixture);
  const auto reason =
      check_repeated(classifier_op(), GetParam(), fixture, args, [](std::string_view) { return 50257.0; },
                     {.beyond = "logits", .elements = std::int64_t{65536} * 50304});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Classifier, Huge, ::testing::ValuesIn(gpu_variant_names(classifier_op())),
                         test_name);

TEST(ClassifierReference, GradientIsTheDerivativeOfTheWeightedLosses) {
  Fixture fixture(5);
  const auto args = classifier_kernels::make({5, 11, 16, 1}, DType::f64, {true, true, false}, fixture);
  auto forward = args;
  forward.gradient = false;
  const Tensor kept = fixture.random(DType::f64, {5, 16});
  std::memcpy(kept.data, args.logits.data, kept.bytes());
  forward.logits = kept;
  const auto& reference = find_variant(classifier_op(), kReference);
  const auto loss = [&] {
    run_variant(classifier_op(), reference, forward, 1);
    double total = 0;
    for (int n = 0; n < 5; ++n) total += args.losses.as<double>()[n] * args.weights.as<double>()[n];
    return total;
  };
  run_variant(classifier_op(), reference, args, 1);
  check_gradient(loss, kept, args.logits, "dlogits");
}

TEST(Classifier, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(6);
  Context context{ContextOptions{}};
  const auto args = classifier_kernels::make({3, 40, 48}, DType::bf16, {true, true, true}, fixture);
  for (const std::int64_t V : {0, -1, 49, 41}) {
    auto wrong = args;
    wrong.V = V;
    EXPECT_THROW(classifier(context, wrong), Error) << V;
  }
  auto wrong = args;
  wrong.losses = fixture.output(DType::bf16, {3});
  EXPECT_THROW(classifier(context, wrong), Error);
  wrong = args;
  wrong.targets = fixture.integers({0, 1});
  EXPECT_THROW(classifier(context, wrong), Error);
}

}  // namespace
}  // namespace warpwright::ops
