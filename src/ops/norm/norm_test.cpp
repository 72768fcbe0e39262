#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "ops/element.hpp"
#include "ops/norm/cases.hpp"
#include "ops/norm/shape.hpp"
#include "ops/testing/repeated.hpp"
#include "ops/testing/unaligned.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

class Forward : public testing::VariantTest {};
class Backward : public testing::VariantTest {};

const std::vector<DType> kAllDTypes{DType::f32, DType::bf16, DType::f16, DType::f64};

// Counts a case that was checked, or stores the reason why it was not.
bool refuses(const std::string& reason, int& checked, std::string& refusal) {
  reason.empty() ? void(++checked) : void(refusal = reason);
  return !reason.empty();
}

void check_forward(const std::string& variant, bool centered) {
  // Some variants take only some lengths of rows, so the checked cases are counted.
  std::string refusal;
  int checked = 0;
  const auto check = [&](const norm::Case& c, const norm::Form& form) {
    Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
    const auto args = norm::make_forward(c, form, fixture);
    // A mean m with a deviation of 1 costs m·2^-24 in x − mean. This is due to the input's condition, not to
    // the kernel.
    const auto reduction = [&](std::string_view) { return (1 + c.mean * c.mean) * static_cast<double>(c.C); };
    refuses(check_variant(norm_forward_op(), variant, fixture, args, reduction), checked, refusal);
  };
  for (const DType dtype : dtypes_for(norm_forward_op(), variant)) {
    for (const auto& c : taken(norm::test_cases())) check(c, {.dtype = dtype, .centered = centered});
  }
  for (const auto& form : norm::test_forms(kAllDTypes, centered)) {
    for (const auto& c : taken(norm::few_cases())) check(c, form);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}
TEST_P(Forward, MatchesTheReference) {
  check_forward(GetParam(), true);
}
TEST_P(Forward, ByTheRootMeanSquareMatchesTheReference) {
  check_forward(GetParam(), false);
}

void check_backward(const std::string& variant, bool centered) {
  std::string refusal;
  int checked = 0;
  const auto check = [&](const norm::Case& c, const norm::Form& form) {
    Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
    const auto args = norm::make_backward(c, form, fixture);
    const auto reduction = [&](std::string_view name) {
      return static_cast<double>(name == "dx" ? c.C : std::max<std::int64_t>(c.N, 1));
    };
    refuses(check_variant(norm_backward_op(), variant, fixture, args, reduction), checked, refusal);
  };
  for (const DType dtype : dtypes_for(norm_backward_op(), variant)) {
    for (const Store store : {Store::assign, Store::add}) {
      if (!centered && store == Store::add) continue;  // covered by the forms below
      for (const auto& c : taken(norm::test_cases())) {
        check(c, {.dtype = dtype, .centered = centered, .store = store});
      }
    }
  }
  for (const auto& form : norm::test_forms(kAllDTypes, centered)) {
    for (const auto& c : taken(norm::few_cases())) check(c, form);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}
TEST_P(Backward, MatchesTheReference) {
  check_backward(GetParam(), true);
}
TEST_P(Backward, ByTheRootMeanSquareMatchesTheReference) {
  check_backward(GetParam(), false);
}

// The arguments of a forward and of the backward from its output; the reference has filled them. The weights
// have all sizes, and some are 0. There are K places for lost columns.
struct FromOut {
  NormForward forward;
  NormBackward backward;
};
FromOut make_from_out(const norm::Case& c, const norm::Form& form, std::int64_t K, Fixture& f) {
  FromOut made;
  made.forward = norm::make_forward(c, form, f);
  NormForward& a = made.forward;
  if (a.weight) {
    for (std::int64_t i = 0; i < c.C; ++i) {
      const Elements weight(a.weight), bias(a.bias);
      if (i % 7 == 3) weight.set(i, 0);
      if (i % 7 == 5) weight.set(i, weight[i] * std::exp2(static_cast<double>(i % 13) - 11));
      if (a.bias) bias.set(i, i % 7 == 3 ? bias[i] : weight[i] * bias[i]);
    }
  }
  a.lost.columns = f.integers(std::vector<std::int32_t>(static_cast<std::size_t>(1 + K), -7));
  if (K > 0) a.lost.x = f.output(form.dtype, {c.N, K});
  run_variant(norm_forward_op(), find_variant(norm_forward_op(), kReference), a, 1);
  made.backward = norm::make_backward(c, form, f);
  NormBackward& b = made.backward;
  b.x = {};
  b.out = a.out;
  b.weight = a.weight;
  b.bias = a.bias;
  b.mean = a.mean;
  b.rstd = a.rstd;
  b.lost = a.lost;
  return made;
}

TEST_P(Backward, FromTheOutputMatchesTheReference) {
  std::string refusal;
  int checked = 0;
  auto forms = norm::test_forms(kAllDTypes, true);
  for (const auto& form : norm::test_forms(kAllDTypes, false)) forms.push_back(form);
  for (norm::Form form : forms) {
    form.statistics = true;
    auto cases = taken(norm::few_cases());
    cases.push_back({2100, 40});  // sums of kept columns over several chunks of rows
    for (const auto& c : cases) {
      Fixture fixture(static_cast<std::uint64_t>(c.N * 10007 + c.C));
      const std::int64_t lost = form.weight ? (c.C + 3) / 7 : 0;
      const auto args = make_from_out(c, form, std::max<std::int64_t>(lost, 1), fixture).backward;
      const auto reduction = [&](std::string_view name) {
        return static_cast<double>(name == "dx" ? c.C : std::max<std::int64_t>(c.N, 1));
      };
      refuses(check_variant(norm_backward_op(), GetParam(), fixture, args, reduction), checked, refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// The oracle is the backward from the input. The error must not exceed what rounding of out causes, ½ε·(|x̂|
// + |bias/weight|).
TEST_P(Backward, FromTheOutputIsTheGradientOfTheInput) {
  std::string refusal;
  int checked = 0;
  const auto& op = norm_backward_op();
  const auto& variant = find_variant(op, GetParam());
  const norm::Case c{70, 136};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    norm::Form form;
    form.dtype = dtype;
    Fixture fixture(8);
    const FromOut made = make_from_out(c, form, (c.C + 3) / 7, fixture);
    NormBackward args = made.backward;
    if (refuses(variant.refuse(op.problem(args), device_for(variant.name)), checked, refusal)) continue;
    run_variant(op, variant, args, 1);
    Fixture twin_fixture(0);
    NormBackward oracle = args;
    oracle.out = oracle.bias = {};
    oracle.lost = {};
    oracle.x = made.forward.x;
    oracle = fp64_twin(oracle, twin_fixture);
    run_variant(op, find_variant(op, kReference), oracle, 1);
    // |x̂| and |bias/weight| are a few each. In a column on the edge of being lost, ½ε·|bias/weight| is an
    // eighth.
    const double bound = 4 * epsilon_of(dtype) + tolerance(dtype, static_cast<double>(c.C));
    for (const auto& [got, wanted] :
         {std::pair{args.dx, oracle.dx}, {args.dweight, oracle.dweight}, {args.dbias, oracle.dbias}}) {
      const Deviation error = compare(elements_of(got), elements_of(wanted), dtype);
      EXPECT_EQ(error.not_finite, 0);
      EXPECT_LE(error.relative, bound) << name_of(dtype);
    }
    // With weight = 0, nothing is recovered from out, so the result is as exact as from the input.
    for (std::int64_t i = 3; i < c.C; i += 7) {
      const double wanted = load_element(oracle.dweight, i);
      EXPECT_NEAR(load_element(args.dweight, i), wanted, 1e-5 * std::max(1.0, std::abs(wanted))) << i;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A lost column that was not kept is NaN. The other columns are the same as if it had been kept.
TEST_P(Backward, LostColumnsWithoutAPlaceAreNaN) {
  std::string refusal;
  int checked = 0;
  const auto& op = norm_backward_op();
  const auto& variant = find_variant(op, GetParam());
  for (const std::int64_t K : {0, 2}) {
    Fixture fixture(9);
    norm::Form form;
    auto args = make_from_out({37, 96}, form, K, fixture).backward;
    if (refuses(variant.refuse(op.problem(args), device_for(variant.name)), checked, refusal)) continue;
    EXPECT_EQ(args.lost.columns.as<std::int32_t>()[0], 14);
    run_variant(op, variant, args, 1);
    for (std::int64_t i = 0; i < 37 * 96; ++i) {
      const bool lost = i % 96 % 7 == 3 && i % 96 / 7 >= K;
      ASSERT_EQ(std::isnan(load_element(args.dx, i)), lost) << i;
      if (i < 96) {
        EXPECT_EQ(std::isnan(load_element(args.dweight, i)), lost) << i;
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Weights whose reciprocals are not normal numbers.
TEST_P(Backward, FromTheOutputTakesHugeWeights) {
  Fixture fixture(13);
  auto args = make_from_out({37, 96}, norm::Form{}, 14, fixture).backward;
  const Elements weight(args.weight), out(args.out), dout(args.dout), bias(args.bias);
  for (const std::int64_t c : {5, 40}) {
    for (std::int64_t n = 0; n < 37; ++n) {
      const double x_hat = (out[n * 96 + c] - bias[c]) / weight[c];
      out.set(n * 96 + c, 0.5 * x_hat * 0x1p126 + bias[c]);
    }
    weight.set(c, 0x1p126);
  }
  for (std::int64_t i = 0; i < 37 * 96; ++i) dout.set(i, dout[i] * 0x1p-60);
  const auto reduction = [](std::string_view name) { return name == "dx" ? 96.0 : 37.0; };
  const auto reason = check_variant(norm_backward_op(), GetParam(), fixture, args, reduction);
  if (!reason.empty()) GTEST_SKIP() << reason;
}

// Every variant of the forward finds and keeps the same columns.
TEST_P(Forward, KeepsLostColumns) {
  std::string refusal;
  int checked = 0;
  const auto& op = norm_forward_op();
  const auto& variant = find_variant(op, GetParam());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& [c, K] : {std::pair<norm::Case, std::int64_t>{{300, 96}, 0},
                               {{300, 96}, 3},
                               {{300, 96}, 20},
                               {{70, 9000}, 1300}}) {
      Fixture fixture(10);
      norm::Form form;
      form.dtype = dtype;
      auto args = make_from_out(c, form, K, fixture).forward;
      if (refuses(variant.refuse(op.problem(args), device_for(variant.name)), checked, refusal)) continue;
      const auto columns = args.lost.columns.as<std::int32_t>();
      const std::vector<std::int32_t> expected(columns, columns + 1 + K);
      const auto kept = K ? elements_of(args.lost.x) : std::vector<double>{};
      std::fill(columns, columns + 1 + K, 99);
      run_variant(op, variant, args, 1);
      EXPECT_EQ(std::vector<std::int32_t>(columns, columns + 1 + K), expected);
      for (std::int64_t i = 0; i < c.N * K; ++i) {
        if (i % K >= expected[0]) continue;
        ASSERT_EQ(load_element(args.lost.x, i), kept[static_cast<std::size_t>(i)]) << i;
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// The output of a constant row is the bias, for any constant.
TEST_P(Forward, TakesConstantRowsExactly) {
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t C : {7, 768, 1000, 4096, 12288}) {
      Fixture fixture(14);
      const auto args = norm::make_forward({8, C}, {.dtype = dtype}, fixture);
      const auto& variant = find_variant(norm_forward_op(), GetParam());
      const auto problem = norm_forward_op().problem(args);
      if (refuses(variant.refuse(problem, device_for(variant.name)), checked, refusal)) continue;
      const Elements x(args.x), out(args.out), bias(args.bias);
      for (std::int64_t i = 0; i < 8 * C; ++i)
        x.set(i, i % C == 0 ? x[i] * (i / C % 2 ? 1 : 1000) : x[i / C * C]);
      run_variant(norm_forward_op(), variant, args, 1);
      for (std::int64_t i = 0; i < 8 * C; ++i)
        ASSERT_EQ(out[i], bias[i % C]) << i << ' ' << name_of(dtype) << C;
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Rows with a large mean, constant rows, one huge element, subnormal numbers.
TEST_P(Forward, TakesUnevenRows) {
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t C : {768, 1021, 4096}) {
      Fixture fixture(11);
      const auto args = norm::make_forward({6, C}, {.dtype = dtype}, fixture);
      const Elements x(args.x);
      for (std::int64_t c = 0; c < C; ++c) {
        x.set(c, 1e4 + x[c]);
        x.set(C + c, 3);
        x.set(2 * C + c, c == C / 2 ? (dtype == DType::f16 ? 6e4 : 1e15) : x[2 * C + c]);
        x.set(3 * C + c, x[3 * C + c] * (dtype == DType::f16 ? 1e-6 : 1e-39));
        x.set(4 * C + c, 0);
      }
      // A mean of 1e4 with a deviation of 1 or 0. The error is due to the input's condition.
      const auto reduction = [&](std::string_view) { return 1e8 * static_cast<double>(C); };
      refuses(check_variant(norm_forward_op(), GetParam(), fixture, args, reduction), checked, refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// The loads of the GPU's forward kernels rely on this.
TEST(ForwardShape, OnlyTheLastPackLiesAfterTheRowsEnd) {
  constexpr std::int64_t kWarp = 32, kLongest = kWarp * 8 * 16;
  for (std::int64_t in_row = 1; in_row <= kLongest; ++in_row) {
    const norm::cuda::RowShape shape = norm::cuda::forward_shape(8 * in_row, DType::bf16, false);
    const std::int64_t threads = kWarp * shape.warps;
    EXPECT_LE(threads * (shape.packs - 1), in_row) << in_row;
    EXPECT_GE(threads * shape.packs, in_row) << in_row;
    if (shape.warps > 1 && shape.packs <= norm::cuda::kFloatPacks) {
      EXPECT_LE(shape.warps, norm::cuda::most_float_warps(shape.packs)) << in_row;
    }
    EXPECT_LE(shape.warps, 16) << in_row;
    EXPECT_EQ(norm::cuda::forward_shape(4 * in_row, DType::f32, false).packs, shape.packs) << in_row;
  }
  EXPECT_EQ(norm::cuda::forward_shape(8 * kLongest + 8, DType::bf16, false).warps, 0);
}

// Runs the variant a thousand times and compares everything that it wrote. Returns the variant's reason if it
// refuses, otherwise "".
template <class A>
std::string check_bits(const Op<A>& op, std::string_view name, const A& args) {
  const auto& variant = find_variant(op, name);
  const DeviceInfo device = device_for(variant.name);
  if (std::string reason = variant.refuse(op.problem(args), device); !reason.empty()) return reason;
  std::optional<Context> own;
  if (device.device.kind == DeviceKind::cpu) own.emplace(ContextOptions{}, device.device);
  Context& context = own ? *own : gpu_context(device.device, false);
  const auto written = [&] {
    std::vector<std::byte> bytes;
    for (const TensorUse& use : uses_of(args)) {
      const auto* p = static_cast<const std::byte*>(use.tensor.data);
      if (use.access != Access::read) bytes.insert(bytes.end(), p, p + use.tensor.bytes());
    }
    return bytes;
  };
  run_variant(context, op, variant, args);
  const auto first = written();
  for (int i = 1; i < 1000 && !::testing::Test::HasFailure(); ++i) {
    run_variant(context, op, variant, args);
    EXPECT_TRUE(first == written()) << i;
  }
  return "";
}

TEST_P(Forward, GivesTheSameBitsAThousandTimes) {
  std::string refusal;
  int checked = 0;
  for (const auto& c : {norm::Case{301, 768}, {35, 4104}}) {
    Fixture fixture(12);
    const auto args = norm::make_forward(c, {.dtype = DType::bf16}, fixture);
    refuses(check_bits(norm_forward_op(), GetParam(), args), checked, refusal);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, GivesTheSameBitsAThousandTimes) {
  std::string refusal;
  int checked = 0;
  std::vector<norm::Case> cases{{301, 768}, {35, 4104}};
  if (GetParam().rfind("cuda.", 0) == 0) cases.push_back({35, 16384});  // rows of a cluster
  for (const auto& c : cases) {
    for (const bool centered : {true, false}) {
      Fixture fixture(12);
      const auto args = norm::make_backward(c, {.dtype = DType::bf16, .centered = centered}, fixture);
      refuses(check_bits(norm_backward_op(), GetParam(), args), checked, refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// Rows of a warp, of a block and of a cluster. They consist of whole packs but do not begin at a multiple of
// 16 bytes.
TEST_P(Forward, TakesRowsThatAreNotAligned) {
  std::string refusal;
  int checked = 0;
  for (const auto& [C, owner] : {std::pair{64, "cuda.warp_row"}, {4096, "cuda.block_row"}}) {
    for (const bool centered : {true, false}) {
      Fixture fixture(5);
      auto args = norm::make_forward({4, C}, {.dtype = DType::bf16, .centered = centered}, fixture);
      args.x = between_packs(args.x);
      args.out = between_packs(args.out);
      if (centered) args.mean = args.mean.slice(0, 1, 3);
      args.rstd = args.rstd.slice(0, 1, 3);
      const auto reduction = [columns = C](std::string_view) { return static_cast<double>(columns); };
      refuses(check_unaligned(norm_forward_op(), GetParam(), fixture, args, reduction, {owner}), checked,
              refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, TakesRowsThatAreNotAligned) {
  std::string refusal;
  int checked = 0;
  for (const auto& [C, owner] :
       {std::pair{64, "cuda.warp_row"}, {4096, "cuda.block_row"}, {16384, "cuda.cluster_row"}}) {
    for (const bool centered : {true, false}) {
      Fixture fixture(6);
      const norm::Form form{.dtype = DType::bf16, .centered = centered, .store = Store::add};
      auto args = norm::make_backward({4, C}, form, fixture);
      args.x = between_packs(args.x);
      args.dx = between_packs(args.dx);
      args.dout = args.dout.slice(0, 1, 3);
      if (centered) args.mean = args.mean.slice(0, 1, 3);
      args.rstd = args.rstd.slice(0, 1, 3);
      const auto reduction = [columns = C](std::string_view) { return static_cast<double>(columns); };
      refuses(check_unaligned(norm_backward_op(), GetParam(), fixture, args, reduction, {owner}), checked,
              refusal);
    }
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// The number of rows of 768 columns that make a tensor slightly larger than 8 MiB, which a CPU writes past
// its caches.
std::int64_t rows_of(DType dtype) {
  return dtype == DType::f32 ? 2800 : 5600;
}
// All rows except one, starting at a multiple of 64 bytes.
Tensor from_a_line(const Tensor& t) {
  const std::int64_t N = t.shape[0] - 1, C = t.shape[1];
  const auto beyond = reinterpret_cast<std::uintptr_t>(t.data) % 64;
  const auto skipped = static_cast<std::int64_t>((64 - beyond) % 64 / size_of(t.dtype));
  return t.view({(N + 1) * C}).slice(0, skipped, N * C).view({N, C});
}

TEST_P(Forward, TakesLargeTensors) {
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(1);
    const std::int64_t N = rows_of(dtype);
    auto args = norm::make_forward({N + 1, 768}, {.dtype = dtype}, fixture);
    args.x = args.x.slice(0, 0, N);
    args.out = from_a_line(args.out);
    args.mean = args.mean.slice(0, 0, N);
    args.rstd = args.rstd.slice(0, 0, N);
    const auto reduction = [](std::string_view) { return 768.0; };
    refuses(check_variant(norm_forward_op(), GetParam(), fixture, args, reduction), checked, refusal);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(Backward, TakesLargeTensors) {
  std::string refusal;
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Fixture fixture(2);
    const std::int64_t N = rows_of(dtype);
    auto args = norm::make_backward({N + 1, 768}, {.dtype = dtype, .store = Store::add}, fixture);
    args.x = args.x.slice(0, 0, N);
    args.dout = args.dout.slice(0, 0, N);
    args.dx = from_a_line(args.dx);
    args.mean = args.mean.slice(0, 0, N);
    args.rstd = args.rstd.slice(0, 0, N);
    const auto reduction = [=](std::string_view name) {
      return name == "dx" ? 768.0 : static_cast<double>(N);
    };
    refuses(check_variant(norm_backward_op(), GetParam(), fixture, args, reduction), checked, refusal);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

// A tuned table chooses each of the block shapes.
TEST(Norm, EveryConfigurationOfCudaTwoStageMatchesTheReference) {
  constexpr std::string_view kTwoStage = "cuda.two_stage";
  if (const std::string missing = missing_for(kTwoStage); !missing.empty()) GTEST_SKIP() << missing;
  const auto& op = norm_backward_op();
  const auto& variant = find_variant(op, kTwoStage);
  Context& context = gpu_context(device_for(kTwoStage).device, false);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const norm::Case& c :
         {norm::Case{9001, 128}, norm::Case{2100, 40}, norm::Case{70, 4096}, norm::Case{3, 33}}) {
      Fixture fixture(17);
      const auto args = norm::make_backward(c, {.dtype = dtype}, fixture);
      const auto problem = op.problem(args);
      for (const Configuration& configuration : variant.configurations(problem, context.device())) {
        const auto table = std::make_shared<TunedTable>(TunedFor{});
        table->set(op.name, tuned_problem(problem, context.device()),
                   choice_text(kTwoStage, configuration.text));
        context.set_tuned(table);
        EXPECT_EQ(variant.configuration(problem, context.device()), configuration.text);
        const auto reduction = [&](std::string_view name) {
          return static_cast<double>(name == "dx" ? c.C : c.N);
        };
        EXPECT_EQ(check_variant(op, kTwoStage, fixture, args, reduction), "");
        fixture.restore();  // the outputs are NaN again
      }
    }
  }
  context.set_tuned(nullptr);
}

// More rows than a block has warps, and a last block that is not full: with 1,000 rows of 320 columns, its
// idle warps own some of the columns of the block's sums.
TEST(Norm, CudaLadderIsRightInEveryConfiguration) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const norm::Case c{1000, 320};
  const auto reduction = [](std::string_view) { return 1000.0; };
  check_configurations(
      norm_forward_op(), [&](Fixture& f) { return norm::make_forward(c, {.dtype = DType::f32}, f); },
      reduction);
  for (const Store store : {Store::assign, Store::add}) {
    check_configurations(
        norm_backward_op(),
        [&](Fixture& f) { return norm::make_backward(c, {.dtype = DType::f32, .store = store}, f); },
        reduction);
  }
}

INSTANTIATE_TEST_SUITE_P(Norm, Forward, ::testing::ValuesIn(variant_names(norm_forward_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Norm, Backward, ::testing::ValuesIn(variant_names(norm_backward_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeBackward : public testing::VariantTest {};

// A shape that the variant takes, with a prime number of rows.
norm::Case huge_case(std::string_view variant) {
  if (variant == "cuda.block_row") return {127, 4096};
  if (variant == "cuda.cluster_row") return {31, 16384};
  return {509, 768};
}

TEST_P(HugeForward, GivesEveryRowItsBits) {
  std::string refusal;
  int checked = 0;
  for (const bool centered : {true, false}) {
    Fixture fixture(8);
    const norm::Case c = huge_case(GetParam());
    const auto args = norm::make_forward(c, {.dtype = DType::bf16, .centered = centered}, fixture);
    refuses(check_repeated(norm_forward_op(), GetParam(), fixture, args,
                           [&](std::string_view) { return static_cast<double>(c.C); },
                           {.beyond = "x", .once = {"weight", "bias"}}),
            checked, refusal);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

TEST_P(HugeBackward, GivesEveryRowItsBitsAndSumsThemAll) {
  std::string refusal;
  int checked = 0;
  for (const bool centered : {true, false}) {
    Fixture fixture(9);
    const norm::Case c = huge_case(GetParam());
    const norm::Form form{.dtype = DType::bf16, .centered = centered, .store = Store::add};
    const auto args = norm::make_backward(c, form, fixture);
    refuses(
        check_repeated(norm_backward_op(), GetParam(), fixture, args,
                       [&](std::string_view name) { return static_cast<double>(name == "dx" ? c.C : c.N); },
                       {.beyond = "x", .once = {"weight", "dweight", "dbias"}, .exact_sums = true}),
        checked, refusal);
  }
  if (checked == 0) GTEST_SKIP() << refusal;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Norm, HugeForward, ::testing::ValuesIn(gpu_variant_names(norm_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeBackward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Norm, HugeBackward, ::testing::ValuesIn(gpu_variant_names(norm_backward_op())),
                         test_name);

void check_derivative(bool centered) {
  Fixture fixture(1);
  const norm::Form form{.dtype = DType::f64, .centered = centered};
  auto forward = norm::make_forward({5, 7}, form, fixture);
  auto backward = norm::make_backward({5, 7}, form, fixture);
  backward.x = forward.x;
  backward.weight = forward.weight;
  backward.mean = forward.mean;
  backward.rstd = forward.rstd;
  const auto loss = [&] {
    run_variant(norm_forward_op(), find_variant(norm_forward_op(), kReference), forward, 1);
    double total = 0;
    for (std::int64_t i = 0; i < forward.out.elements(); ++i) {
      total += forward.out.as<double>()[i] * backward.dout.as<double>()[i];
    }
    return total;
  };
  loss();
  run_variant(norm_backward_op(), find_variant(norm_backward_op(), kReference), backward, 1);
  check_gradient(loss, forward.x, backward.dx, "dx");
  check_gradient(loss, forward.weight, backward.dweight, "dweight");
  if (centered) check_gradient(loss, forward.bias, backward.dbias, "dbias");
}
TEST(NormReference, BackwardIsTheDerivativeOfForward) {
  check_derivative(true);
}
TEST(NormReference, ByTheRootMeanSquareBackwardIsTheDerivativeOfForward) {
  check_derivative(false);
}

// An infinity makes the mean infinite and its whole row NaN, as in PyTorch.
TEST_P(Forward, NaNStaysInItsRow) {
  Fixture fixture(2);
  const auto args = norm::make_forward({3, 40}, {.dtype = DType::f32}, fixture);
  const auto& variant = find_variant(norm_forward_op(), GetParam());
  if (auto reason = variant.refuse(norm_forward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    args.x.as<float>()[40] = value;
    run_variant(norm_forward_op(), variant, args, 1);
    for (int i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(args.out.as<float>()[i]), i / 40 == 1);
  }
}

// Later GPUs run the code for compute capability 8, without clusters. So does Hopper in a build that has no
// code for it.
TEST(Norm, OnlyHopperSharesARowAmongBlocks) {
  const NormBackwardProblem rows{{.N = 64, .C = 65536, .dtype = DType::bf16}};
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  for (const int major : {8, 9, 10, 12}) {
    device.gpu = {major, 0, 132, 227 << 10, 228 << 10};
    const norm::cuda::BackwardLaunch launch = backward_launch(norm::cuda::BackwardTensors(rows), device);
    EXPECT_EQ(launch.shape.blocks > 1, major == 9) << major;
  }
  device.gpu = {9, 0, 132, 227 << 10, 228 << 10, false};
  EXPECT_EQ(backward_launch(norm::cuda::BackwardTensors(rows), device).shape.blocks, 1);
}

TEST(Norm, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  auto args = norm::make_forward({3, 40}, {.dtype = DType::f32}, fixture);
  auto wrong = args;
  wrong.weight = fixture.random(DType::f32, {39});
  EXPECT_THROW(norm_forward(context, wrong), Error);
  wrong = args;
  wrong.bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(norm_forward(context, wrong), Error);
  wrong = args;
  wrong.out = {};
  EXPECT_THROW(norm_forward(context, wrong), Error);
  wrong = args;
  wrong.weight = {};
  EXPECT_THROW(norm_forward(context, wrong), Error);
  wrong = args;
  wrong.centered = false;  // bias and mean are still given
  EXPECT_THROW(norm_forward(context, wrong), Error);
  wrong = args;
  wrong.lost.x = fixture.random(DType::f32, {3, 2});
  EXPECT_THROW(norm_forward(context, wrong), Error);
  auto backward = norm::make_backward({3, 40}, {.dtype = DType::f32, .store = Store::add}, fixture);
  backward.dsum = backward.dout;
  EXPECT_THROW(norm_backward(context, backward), Error);
  backward.dsum = {};
  backward.out = backward.x;
  EXPECT_THROW(norm_backward(context, backward), Error);
  backward.x = {};
  backward.rstd = {};
  EXPECT_THROW(norm_backward(context, backward), Error);
}

TEST(Norm, ForcedVariantsAreTakenOrRefusedWithTheReason) {
  Fixture fixture(4);
  const auto args = norm::make_forward({3, 40}, {.dtype = DType::f32}, fixture);
  ContextOptions options;
  options.force["norm"] = "reference";
  Context forced(options);
  norm_forward(forced, args);
  EXPECT_EQ(choose(forced, norm_forward_op(), norm_forward_op().problem(args)).variant->name, kReference);
  options.force["norm.forward"] = "cpu.imaginary";
  Context unknown(options);
  EXPECT_THROW(norm_forward(unknown, args), Error);
}

}  // namespace
}  // namespace warpwright::ops
