#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "ops/adamw/cases.hpp"
#include "ops/adamw/master.hpp"
#include "ops/adamw/rounding.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/repeats.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the operations' fixture, not GoogleTest's

class Variants : public testing::VariantTest {
 protected:
  // Runs the variant under test; returns its reason if it refuses, else "".
  std::string run(const AdamW& args) {
    const auto& variant = find_variant(adamw_op(), GetParam());
    std::string reason = variant.refuse(adamw_op().problem(args), device_for(variant.name));
    if (reason.empty()) run_variant(adamw_op(), variant, args, 2);
    return reason;
  }
};

class WithMasters : public Variants {};  // also the reference

TEST_P(Variants, MatchTheReference) {
  Tally tally;
  for (const auto& c : taken(adamw_kernels::test_cases())) {
    for (const DType dtype : dtypes_for(adamw_op(), GetParam())) {
      for (const double scale : {1.0, 0.25}) {
        Fixture fixture(c.sizes.size());
        const auto args = adamw_kernels::make(c, dtype, scale, fixture);
        const auto reduction = [](std::string_view) { return 4.0; };  // terms of w, m and v
        tally.add(check_variant(adamw_op(), GetParam(), fixture, args, reduction));
      }
    }
  }
  if (tally.none()) GTEST_SKIP() << tally.refusal();
}

TEST_P(Variants, AScaleThatIsNotFiniteChangesNothing) {
  for (const double scale :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const DType dtype : dtypes_for(adamw_op(), GetParam())) {
      Fixture fixture(1);
      const auto args = adamw_kernels::make({{100, 3}}, dtype, scale, fixture);
      fixture.snapshot();
      if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
      for (const auto& storage : fixture.storages()) EXPECT_TRUE(storage.bytes == storage.before);
    }
  }
}

// The same arguments with fp32 parameters in place of bf16 ones: their masters, if they have any.
AdamW with_fp32_parameters(AdamW args, Fixture& fixture) {
  for (AdamWTensor& t : args.tensors) {
    const auto copy = [&](Tensor& tensor) {
      const Tensor other = fixture.output(tensor.dtype, tensor.shape);
      std::memcpy(other.data, tensor.data, tensor.bytes());
      tensor = other;
    };
    for (Tensor* tensor : {&t.m, &t.v}) copy(*tensor);
    if (t.parameter.dtype == DType::f32) {
      copy(t.parameter);
    } else {
      t.parameter = adamw_kernels::widened(t.parameter, t.remainder, fixture);
      t.remainder = {};
    }
  }
  return args;
}

std::string bits_of(const Tensor& t) {
  return {static_cast<const char*>(t.data), t.bytes()};
}

// m, v and the parameters that are fp32 on both sides have the same bits.
void expect_same_but_bf16(const AdamW& args, const AdamW& other) {
  for (std::size_t k = 0; k < args.tensors.size(); ++k) {
    const AdamWTensor &t = args.tensors[k], &o = other.tensors[k];
    EXPECT_TRUE(bits_of(t.m) == bits_of(o.m) && bits_of(t.v) == bits_of(o.v)) << k;
    if (t.parameter.dtype == DType::f32) {
      EXPECT_TRUE(bits_of(t.parameter) == bits_of(o.parameter)) << k;
    }
  }
}

TEST_P(WithMasters, AMasterHasTheBitsOfAnFp32Parameter) {
  for (auto c : taken(adamw_kernels::test_cases())) {
    c.mixed = true;
    Fixture fixture(c.sizes.size()), other_fixture(1);
    const auto args = adamw_kernels::make(c, DType::bf16, 0.25, fixture);
    const AdamW other = with_fp32_parameters(args, other_fixture);
    fixture.snapshot();
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    expect_only_written(fixture, uses_of(args));
    ASSERT_EQ(run(other), "");
    expect_same_but_bf16(args, other);
    for (std::size_t k = 0; k < args.tensors.size(); ++k) {
      const AdamWTensor& t = args.tensors[k];
      if (!t.remainder) continue;
      EXPECT_EQ(adamw_kernels::differing_elements(other.tensors[k].parameter, t.parameter, t.remainder), 0)
          << k;
    }
  }
}

// A master halfway above an even parameter, kept as the odd one above it. It rounds to the even one, and the
// remainder, 2^15, does not fit.
TEST_P(WithMasters, ARemainderThatDoesNotFitBecomesTheLargest) {
  Fixture fixture(4);
  const auto args = adamw_kernels::make({{1000, 7}}, DType::bf16, 1, fixture);
  store_element(args.scalars, 0, 0);  // the learning rate
  for (const AdamWTensor& t : args.tensors) {
    for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
      t.parameter.as<bf16>()[i].bits = i % 2 ? 0xbf81 : 0x3f81;
      t.remainder.as<std::int16_t>()[i] = INT16_MIN;
    }
  }
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  for (const AdamWTensor& t : args.tensors) {
    for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
      EXPECT_EQ(t.parameter.as<bf16>()[i].bits, i % 2 ? 0xbf80 : 0x3f80);
      EXPECT_EQ(t.remainder.as<std::int16_t>()[i], INT16_MAX);
    }
  }
}

// Forty steps from the same start, compared with fp64: errors may add up, not grow.
TEST_P(Variants, FollowsTheReferenceOverManySteps) {
  Fixture fixture(3), twin_fixture(0);
  auto args = adamw_kernels::make({{500}}, DType::f32, 1, fixture);
  for (Tensor* zero : {&args.tensors[0].m, &args.tensors[0].v}) std::memset(zero->data, 0, zero->bytes());
  auto twin = fp64_twin(args, twin_fixture);
  for (int step = 1; step <= 40; ++step) {
    for (const Tensor& scalars : {args.scalars, twin.scalars}) {
      store_host_scalars(host_scalars_of(scalars), load_scalars(scalars).learning_rate, 0.9, 0.999, step);
    }
    const Tensor gradient = fixture.random(DType::f32, {500}, 0.1);
    for (int i = 0; i < 500; ++i) {
      store_element(args.tensors[0].gradient, i, load_element(gradient, i));
      store_element(twin.tensors[0].gradient, i, load_element(gradient, i));
    }
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    run_variant(adamw_op(), find_variant(adamw_op(), kReference), twin, 1);
  }
  const Deviation error =
      compare(elements_of(args.tensors[0].parameter), elements_of(twin.tensors[0].parameter), DType::f32);
  EXPECT_LE(error.relative, tolerance(DType::f32, 40));
}

TEST_P(Variants, RepeatsItsBits) {
  Fixture fixture(8);
  const auto args = adamw_kernels::make({{100003, 7, 768}, 0, true}, DType::bf16, 1, fixture);
  const auto reason = check_repeats(adamw_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

// bf16 without masters, and the fp32 parameters between them.
class WithoutMasters : public Variants {
 protected:
  static adamw_kernels::Case case_of(std::vector<std::int64_t> sizes) {
    return {std::move(sizes), 0, true, false};
  }
};

// Runs the same arguments with fp32 parameters. m, v and the parameters that are fp32 anyway must have the
// same bits, and a bf16 parameter must be the fp32 one, rounded with the bits of (seed, step, tensor,
// element).
TEST_P(WithoutMasters, RoundsWhatAnFp32ParameterWouldBe) {
  for (auto c : taken(adamw_kernels::test_cases())) {
    c.masters = false;
    c.mixed = true;
    Fixture fixture(c.sizes.size()), other_fixture(1);
    const auto args = adamw_kernels::make(c, DType::bf16, 0.25, fixture);
    if (adamw_op().problem(args).masters) continue;  // no tensors
    const AdamW other = with_fp32_parameters(args, other_fixture);
    fixture.snapshot();
    if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
    expect_only_written(fixture, uses_of(args));
    ASSERT_EQ(run(other), "");
    expect_same_but_bf16(args, other);
    for (std::size_t k = 0; k < args.tensors.size(); ++k) {
      const AdamWTensor &t = args.tensors[k], &o = other.tensors[k];
      if (t.parameter.dtype == DType::f32) continue;
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < t.parameter.elements(); ++i) {
        const auto random =
            adamw_kernels::random_block(args.random.as<std::int32_t>(), static_cast<std::uint32_t>(k), i / 8);
        const bf16 wanted(adamw_kernels::stochastically_rounded(
            o.parameter.as<float>()[i], adamw_kernels::random_half(random, static_cast<int>(i % 8))));
        wrong += t.parameter.as<bf16>()[i].bits != wanted.bits;
      }
      EXPECT_EQ(wrong, 0) << "of tensor " << k;
    }
  }
}

// Decay alone turns 1 into 1 − 2^-10, a quarter of the way from 1 to the next number of bf16. The number of
// elements that move is binomial; one seed in 5e8 is six deviations off.
TEST_P(WithoutMasters, MovesAsOftenAsItShould) {
  constexpr std::int64_t kElements = 200000;
  Fixture fixture(10);
  auto args = adamw_kernels::make(case_of({kElements}), DType::bf16, 1, fixture);
  AdamWTensor& t = args.tensors[0];
  for (const Tensor& zero : {t.gradient, t.m, t.v}) std::memset(zero.data, 0, zero.bytes());
  std::fill_n(t.parameter.as<bf16>(), kElements, bf16(1.0f));
  t.weight_decay = 1;
  static_cast<AdamWScalars<float>*>(args.scalars.data)->learning_rate = 0x1p-10f;
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  std::int64_t moved = 0;
  for (std::int64_t i = 0; i < kElements; ++i) {
    const auto value = static_cast<float>(t.parameter.as<bf16>()[i]);
    EXPECT_TRUE(value == 1 || value == 1 - 0x1p-8f) << value;
    moved += value != 1;
  }
  const double wanted = 0.25 * kElements, deviation = std::sqrt(kElements * 0.25 * 0.75);
  EXPECT_LE(std::abs(static_cast<double>(moved) - wanted), 6 * deviation);
}

TEST_P(WithoutMasters, OtherSeedsStepsAndTensorsRoundOtherwise) {
  const auto rounded = [&](const std::vector<std::int32_t>& random) {
    Fixture fixture(11);
    auto args = adamw_kernels::make(case_of({1000, 0, 1000}), DType::bf16, 1, fixture);
    for (auto member : {&AdamWTensor::parameter, &AdamWTensor::gradient, &AdamWTensor::m, &AdamWTensor::v}) {
      const Tensor &from = args.tensors[0].*member, &to = args.tensors[2].*member;
      std::memcpy(to.data, from.data, from.bytes());
    }
    std::copy(random.begin(), random.end(), args.random.as<std::int32_t>());
    const std::string reason = run(args);
    return std::array{reason, bits_of(args.tensors[0].parameter), bits_of(args.tensors[2].parameter)};
  };
  const auto first = rounded({1, 2, 3});
  if (!first[0].empty()) GTEST_SKIP() << first[0];
  EXPECT_NE(first[1], first[2]);
  EXPECT_EQ(rounded({1, 2, 3}), first);
  for (const auto& other : {rounded({7, 2, 3}), rounded({1, 7, 3}), rounded({1, 2, 7})}) {
    EXPECT_NE(other[1], first[1]);
    EXPECT_NE(other[2], first[2]);
  }
}

// A rank has only a part of a parameter.
TEST_P(WithoutMasters, APartHasTheBitsOfTheWhole) {
  constexpr std::int64_t kCut = 16384, kElements = 40003;
  Fixture fixture(14), other_fixture(14);
  const auto whole = adamw_kernels::make(case_of({5, kElements}), DType::bf16, 1, fixture);
  auto parts = adamw_kernels::make(case_of({5, kElements}), DType::bf16, 1, other_fixture);
  const AdamWTensor t = parts.tensors[1];
  parts.tensors.clear();
  for (const auto& [from, to] : {std::pair{kCut, kElements}, std::pair{std::int64_t{0}, kCut}}) {
    AdamWTensor part = t;
    for (auto member : {&AdamWTensor::parameter, &AdamWTensor::gradient, &AdamWTensor::m, &AdamWTensor::v}) {
      part.*member = (t.*member).slice(0, from, to - from);
    }
    part.first = from;
    parts.tensors.push_back(part);
  }
  if (const auto reason = run(whole); !reason.empty()) GTEST_SKIP() << reason;
  ASSERT_EQ(run(parts), "");
  EXPECT_TRUE(bits_of(t.parameter) == bits_of(whole.tensors[1].parameter));
}

TEST_P(WithoutMasters, RepeatsItsBits) {
  Fixture fixture(12);
  const auto args = adamw_kernels::make(case_of({100003, 7, 768}), DType::bf16, 1, fixture);
  const auto reason = check_repeats(adamw_op(), GetParam(), fixture, args);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(WithoutMasters, AScaleThatIsNotFiniteChangesNothing) {
  Fixture fixture(13);
  const auto args = adamw_kernels::make(case_of({100, 3, 9}), DType::bf16,
                                        std::numeric_limits<double>::quiet_NaN(), fixture);
  fixture.snapshot();
  if (const auto reason = run(args); !reason.empty()) GTEST_SKIP() << reason;
  for (const auto& storage : fixture.storages()) EXPECT_TRUE(storage.bytes == storage.before);
}

// The variants that take parameters without masters.
std::vector<std::string> stochastic(std::vector<std::string> names) {
  std::erase(names, "cuda.plain");
  return names;
}
std::vector<std::string> all_variants() {
  std::vector<std::string> names = variant_names(adamw_op());
  names.emplace_back(kReference);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AdamW, WithMasters, ::testing::ValuesIn(all_variants()), test_name);
INSTANTIATE_TEST_SUITE_P(AdamW, WithoutMasters, ::testing::ValuesIn(stochastic(all_variants())), test_name);

float float_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// All remainders of all kinds of parameters: zeros, subnormal numbers, the largest ones, infinities.
TEST(Master, ParameterAndRemainderAreTheMaster) {
  for (const std::uint32_t upper :
       {0u, 1u, 0x7fu, 0x80u, 0x3f80u, 0x3f81u, 0x7f7eu, 0x7f7fu, 0x8000u, 0xbf80u}) {
    for (std::uint32_t lower = 0; lower < 0x10000; ++lower) {
      const float master = float_of(upper << 16 | lower);
      const std::uint16_t parameter = bf16(master).bits;
      const float again = adamw_kernels::master_of(parameter, adamw_kernels::remainder_of(master, parameter));
      const bool halfway_above_even = lower == 0x8000 && upper % 2 == 0;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(again), (upper << 16 | lower) - halfway_above_even) << upper;
      EXPECT_EQ(bf16(again).bits, parameter) << upper << " " << lower;
    }
  }
}

TEST(Master, InfinitiesAndNaNsStaySo) {
  for (const std::uint32_t bits : {0x7f800000u, 0xff800000u}) {
    const std::uint16_t parameter = bf16(float_of(bits)).bits;
    EXPECT_EQ(adamw_kernels::master_of(parameter, adamw_kernels::remainder_of(float_of(bits), parameter)),
              float_of(bits));
  }
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    // Processors and GPUs round a NaN to another one.
    for (const std::uint16_t parameter : {bf16(float_of(bits)).bits, std::uint16_t{0x7fff}}) {
      EXPECT_TRUE(std::isnan(
          adamw_kernels::master_of(parameter, adamw_kernels::remainder_of(float_of(bits), parameter))));
    }
  }
}

// The lower half of a number is the count of the 2^16 random halves that round up. The mean is the number.
TEST(StochasticRounding, IsUnbiasedBetweenTheNeighbours) {
  const PhiloxStream stream(1, 2);
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    const std::uint32_t bits = stream.block(trial)[0];
    if ((bits & 0x7fffffffu) > adamw_kernels::kLargestFinite) continue;
    const std::uint16_t down = static_cast<std::uint16_t>(bits >> 16),
                        up = static_cast<std::uint16_t>(down + 1);
    std::uint32_t ups = 0;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {
      const bf16 rounded(adamw_kernels::stochastically_rounded(float_of(bits), random));
      ASSERT_TRUE(rounded.bits == down || rounded.bits == up) << bits;
      ups += rounded.bits == up;
    }
    EXPECT_EQ(ups, bits & 0xffffu);
  }
}

TEST(StochasticRounding, LeavesWhatBf16HasAndWhatIsNoNumber) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
      const bf16 rounded(adamw_kernels::stochastically_rounded(float_of(upper << 16), random));
      EXPECT_EQ(rounded.bits, bf16(float_of(upper << 16)).bits) << upper;
    }
  }
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (const std::uint32_t random : {0u, 0x7fffu, 0xffffu}) {
      const auto rounded = [&](std::uint32_t bits) {
        return static_cast<float>(bf16(adamw_kernels::stochastically_rounded(float_of(sign | bits), random)));
      };
      EXPECT_TRUE(std::isnan(rounded(0x7f800001)) && std::isnan(rounded(0x7fffffff)));
      // Half a step beyond the largest finite number becomes infinite, as in rounding to nearest; less does
      // not.
      EXPECT_EQ(rounded(0x7f7f7fff), float_of(sign | 0x7f7f0000));
      EXPECT_EQ(rounded(0x7f7f8000), float_of(sign | 0x7f800000));
      EXPECT_EQ(rounded(0x7f7effff), float_of(sign | (random == 0 ? 0x7f7e0000 : 0x7f7f0000)));
    }
  }
}

TEST(StochasticRounding, GivesEachOfEightElementsItsOwnBits) {
  const PhiloxCounter block{0x11110000, 0x33332222, 0x55554444, 0x77776666};
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(adamw_kernels::random_half(block, j), 0x1111u * static_cast<std::uint32_t>(j));
  }
}

INSTANTIATE_TEST_SUITE_P(AdamW, Variants, ::testing::ValuesIn(variant_names(adamw_op())), test_name);

class Huge : public testing::VariantTest {};  // GPU variants
class HugeWithoutMasters : public Huge {};

TEST_P(Huge, GivesEveryElementItsBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(7);
    const auto args = adamw_kernels::make({{200000, 77}}, dtype, 0.5, fixture);
    const auto reason =
        check_repeated(adamw_op(), GetParam(), fixture, args, [](std::string_view) { return 4.0; },
                       {.beyond = "parameter", .once = {"scalars"}});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
}

// A learning rate of 0 leaves every parameter as it is, wherever its random bits come from.
TEST_P(HugeWithoutMasters, GivesEveryElementItsBits) {
  Fixture fixture(9);
  const auto args = adamw_kernels::make({{200000, 77}, 0, false, false}, DType::bf16, 0.5, fixture);
  static_cast<AdamWScalars<float>*>(args.scalars.data)->learning_rate = 0;
  const auto reason =
      check_repeated(adamw_op(), GetParam(), fixture, args, [](std::string_view) { return 4.0; },
                     {.beyond = "parameter", .once = {"scalars", "random"}});
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Huge);  // in a build without CUDA
INSTANTIATE_TEST_SUITE_P(AdamW, Huge, ::testing::ValuesIn(gpu_variant_names(adamw_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeWithoutMasters);
INSTANTIATE_TEST_SUITE_P(AdamW, HugeWithoutMasters,
                         ::testing::ValuesIn(stochastic(gpu_variant_names(adamw_op()))), test_name);

// Steps computed by hand: with β1 = 0, m = g; with β2 = 0, v = g². A step is learning_rate · g / (|g| + eps).
TEST(AdamWReference, KnownSteps) {
  Fixture fixture(4);
  auto args = adamw_kernels::make({{2}}, DType::f64, 1, fixture);
  args.beta1 = args.beta2 = 0;
  args.eps = 0.5;
  args.tensors[0].weight_decay = 0.25;
  const AdamWScalars<double> scalars{
      .learning_rate = 0.5, .bias_correction1 = 1, .bias_correction2 = 1, .gradient_scale = 2};
  std::memcpy(args.scalars.data, &scalars, sizeof scalars);
  const double weights[2] = {4, -8}, gradients[2] = {0.75, -1.75};
  std::memcpy(args.tensors[0].parameter.data, weights, sizeof weights);
  std::memcpy(args.tensors[0].gradient.data, gradients, sizeof gradients);
  run_variant(adamw_op(), find_variant(adamw_op(), kReference), args, 1);
  const double* w = args.tensors[0].parameter.as<double>();
  EXPECT_DOUBLE_EQ(w[0], 4 - 0.5 * (1.5 / 2.0 + 1));
  EXPECT_DOUBLE_EQ(w[1], -8 - 0.5 * (-3.5 / 4.0 - 2));
  EXPECT_EQ(args.tensors[0].m.as<double>()[0], 1.5);
  EXPECT_EQ(args.tensors[0].v.as<double>()[1], 12.25);
}

// With β1 = β2 = 0, AdamW descends along the signs: a tiny step lowers the loss by learning_rate · Σ
// |∂loss/∂w|.
TEST(AdamWReference, DescendsAlongTheGradient) {
  Fixture fixture(5);
  auto args = adamw_kernels::make({{30}}, DType::f64, 1, fixture);
  args.beta1 = args.beta2 = 0;
  args.eps = 0;
  args.tensors[0].weight_decay = 0;
  const AdamWScalars<double> scalars{
      .learning_rate = 1e-6, .bias_correction1 = 1, .bias_correction2 = 1, .gradient_scale = 1};
  std::memcpy(args.scalars.data, &scalars, sizeof scalars);
  double* w = args.tensors[0].parameter.as<double>();
  const auto loss = [&] {
    double sum = 0;
    for (int i = 0; i < 30; ++i) sum += 0.5 * w[i] * w[i];
    return sum;
  };
  double wanted = 0;
  for (int i = 0; i < 30; ++i) {
    args.tensors[0].gradient.as<double>()[i] = w[i];
    wanted += 1e-6 * std::abs(w[i]);
  }
  const double before = loss();
  run_variant(adamw_op(), find_variant(adamw_op(), kReference), args, 1);
  EXPECT_NEAR(before - loss(), wanted, 1e-5 * wanted);
}

// Both bias corrections of step 0 are 0, and the update would divide by them.
TEST(AdamW, CountsStepsFromOne) {
  float scalars[3] = {7, 7, 7};
  const Tensor tensor{scalars, DType::f32, {3}};
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{-1}}) {
    try {
      store_host_scalars(tensor, 1e-3, 0.9, 0.999, step);
      ADD_FAILURE() << "step " << step;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "adamw: step is " + std::to_string(step) + "; count the steps from 1");
    }
    EXPECT_EQ(scalars[0], 7) << "written before the check";
  }
  store_host_scalars(tensor, 1e-3, 0.9, 0.999, 1);
  EXPECT_FLOAT_EQ(scalars[1], 0.1f);
  EXPECT_FLOAT_EQ(scalars[2], 0.001f);
}

TEST(AdamW, CudaPlainNeedsMasters) {
  const auto names = variant_names(adamw_op());
  if (std::find(names.begin(), names.end(), "cuda.plain") == names.end()) {
    GTEST_SKIP() << "needs an NVIDIA GPU";
  }
  DeviceInfo device;
  device.device.kind = DeviceKind::cuda;
  const auto& variant = find_variant(adamw_op(), "cuda.plain");
  EXPECT_EQ(variant.refuse({8, 1, DType::bf16, true}, device), "");
  EXPECT_NE(variant.refuse({8, 1, DType::bf16, false}, device), "");
}

TEST(AdamW, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(6);
  Context context{ContextOptions{}};
  const auto args = adamw_kernels::make({{40, 3}}, DType::bf16, 1, fixture);
  auto wrong = args;
  wrong.tensors[1].remainder = {};
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = args;
  wrong.tensors[0].m = fixture.random(DType::f32, {39});
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = args;
  wrong.scalars = fixture.random(DType::f32, {3});
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = adamw_kernels::make({{40}}, DType::f16, 1, fixture);
  EXPECT_THROW(adamw(context, wrong), Error) << "fp16";
  wrong.tensors.push_back(args.tensors[0]);
  EXPECT_THROW(adamw(context, wrong), Error) << "two dtypes of 16 bits";
  wrong = adamw_kernels::make({{40, 40}, 0, true}, DType::bf16, 1, fixture);
  wrong.tensors[1].remainder = wrong.tensors[0].remainder;
  EXPECT_THROW(adamw(context, wrong), Error) << "an fp32 parameter with a remainder";
  const auto alone = adamw_kernels::make({{40, 3}, 0, false, false}, DType::bf16, 1, fixture);
  wrong = alone;
  wrong.random = {};
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong.random = fixture.integers({1, 2});
  EXPECT_THROW(adamw(context, wrong), Error);
  wrong = alone;
  wrong.tensors[1].first = 12;
  EXPECT_THROW(adamw(context, wrong), Error) << "in the middle of eight random numbers";
}

}  // namespace
}  // namespace warpwright::ops
