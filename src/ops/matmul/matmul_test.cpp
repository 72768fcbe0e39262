#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <tuple>

#include "ops/matmul/cases.hpp"
#include "ops/matmul/cuda/wgmma.hpp"
#include "ops/matmul/kernels.hpp"
#include "ops/matmul/measured.hpp"
#include "ops/matmul/mma_selector.hpp"
#include "ops/matmul/packed.hpp"
#include "ops/matmul/timeline.hpp"
#include "ops/testing/repeated.hpp"
#include "roofline/shares.hpp"
#include "runtime/file.hpp"

namespace warpwright::ops {
namespace {

using namespace testing;  // the fixture of ops, not GoogleTest's namespace

constexpr Activation kActivations[] = {Activation::none, Activation::gelu_tanh, Activation::gelu_erf,
                                       Activation::relu, Activation::tanh};

struct Precision {
  DType dtype;
  bool tf32 = false;
};
// A GPU's variants may round fp32's factors to tf32.
template <class A>
std::vector<Precision> precisions_of(const Op<A>& op, const std::string& variant) {
  std::vector<Precision> list;
  for (const DType dtype : dtypes_for(op, variant)) list.push_back({dtype});
  if (variant.starts_with("cuda.") && list.front().dtype == DType::f32) list.push_back({DType::f32, true});
  return list;
}

class Forward : public testing::VariantTest {};
class Dx : public testing::VariantTest {};
class Dw : public testing::VariantTest {};

// Some variants take only some dtypes and shapes, so the checked cases are counted.
void note(const std::string& refusal, int& checked, std::string& reason) {
  if (refusal.empty()) ++checked;
  // A skip is explained by what the machine lacks, not by the refusal of a single case.
  if (!refusal.empty() && !reason.starts_with("needs ")) reason = refusal;
}
void expect_some(int checked, const std::string& reason) {
  if (checked == 0) GTEST_SKIP() << reason;
}

TEST_P(Forward, MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(matmul::test_cases())) {
    for (const auto& [dtype, tf32] : precisions_of(matmul_forward_op(), GetParam())) {
      for (const Activation activation : kActivations) {
        Fixture fixture(static_cast<std::uint64_t>(c.M * 10007 + c.N * 101 + c.K));
        const auto args =
            matmul::make_forward(c, dtype, activation != Activation::gelu_erf, activation, fixture);
        const auto reduction = [&](std::string_view) {
          return static_cast<double>(std::max<std::int64_t>(c.K, 1));
        };
        const auto refusal = check_variant(matmul_forward_op(), GetParam(), fixture, args, reduction, tf32);
        note(refusal, checked, reason);
      }
    }
  }
  expect_some(checked, reason);
}

// Each case, dtype and activation takes the next of kFinishings.
TEST_P(Forward, WithAResidualAScaleOrInFp32MatchesTheReference) {
  int checked = 0;
  std::size_t turn = 0;
  std::string reason;
  for (const auto& c : taken(matmul::test_cases())) {
    for (const auto& [dtype, tf32] : precisions_of(matmul_forward_op(), GetParam())) {
      for (const Activation activation : {Activation::none, Activation::gelu_tanh}) {
        const matmul::Finishing& finishing = matmul::kFinishings[turn++ % std::size(matmul::kFinishings)];
        Fixture fixture(static_cast<std::uint64_t>(c.M * 10007 + c.N * 101 + c.K));
        auto args = matmul::make_forward(c, dtype, true, activation, fixture, finishing);
        if (turn % 2 == 0) args.next_weight = args.weight;  // a hint, which changes nothing
        const auto reduction = [&](std::string_view) {
          return static_cast<double>(std::max<std::int64_t>(c.K, 1));
        };
        const auto refusal = check_variant(matmul_forward_op(), GetParam(), fixture, args, reduction, tf32);
        note(refusal, checked, reason);
      }
    }
  }
  expect_some(checked, reason);
}

// Variants without a layout of their own refuse a packed weight.
TEST_P(Forward, APackedWeightGivesTheSameBits) {
  const auto& variant = find_variant(matmul_forward_op(), GetParam());
  ContextOptions options;
  options.force = {{"matmul.forward", GetParam()}};
  Context context(options, device_for(GetParam()).device);
  const DeviceInfo& device = context.device();
  for (const auto& c : taken(matmul::test_cases())) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const bool packs = !packed_layout(dtype, device).empty();
      Fixture fixtures[] = {Fixture(7), Fixture(7)};
      const auto plain = matmul::make_forward(c, dtype, true, Activation::gelu_erf, fixtures[0]);
      auto args = matmul::make_forward(c, dtype, true, Activation::gelu_erf, fixtures[1]);
      const std::int64_t bytes = packs ? packed_bytes(c.N, c.K, dtype, device) : 64;
      args.packed = fixtures[1].output(DType::u8, {bytes});
      EXPECT_EQ(variant.refuse(matmul_forward_op().problem(args), device).empty(), packs);
      auto longer = args;
      longer.packed.shape = Shape{bytes + 64};
      EXPECT_NE(variant.refuse(matmul_forward_op().problem(longer), device), "");
      if (!packs) continue;
      pack_weight(context, args.weight, args.packed);
      args.weight.data = nullptr;
      run_variant(matmul_forward_op(), variant, plain, 2);
      run_variant(matmul_forward_op(), variant, args, 2);
      EXPECT_EQ(elements_of(args.out), elements_of(plain.out));
      EXPECT_EQ(elements_of(args.preact), elements_of(plain.preact));
    }
  }
}

TEST_P(Dx, MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(matmul::test_cases())) {
    for (const auto& [dtype, tf32] : precisions_of(matmul_dx_op(), GetParam())) {
      for (const Activation activation : kActivations) {
        Fixture fixture(static_cast<std::uint64_t>(c.M * 10007 + c.N * 101 + c.K));
        const auto args = matmul::make_dx(c, dtype, activation, fixture);
        const auto reduction = [&](std::string_view) { return static_cast<double>(c.N); };
        const auto refusal = check_variant(matmul_dx_op(), GetParam(), fixture, args, reduction, tf32);
        note(refusal, checked, reason);
      }
    }
  }
  expect_some(checked, reason);
}

TEST_P(Dx, InFp32MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(matmul::test_cases())) {
    for (const DType dtype : dtypes_for(matmul_dx_op(), GetParam())) {
      if (size_of(dtype) != 2) continue;
      for (const Activation activation : {Activation::none, Activation::gelu_erf}) {
        Fixture fixture(static_cast<std::uint64_t>(c.M * 10007 + c.N * 101 + c.K));
        const auto args = matmul::make_dx(c, dtype, activation, fixture, true);
        const auto reduction = [&](std::string_view) { return static_cast<double>(c.N); };
        const auto refusal = check_variant(matmul_dx_op(), GetParam(), fixture, args, reduction);
        note(refusal, checked, reason);
      }
    }
  }
  expect_some(checked, reason);
}

TEST_P(Dw, MatchesTheReference) {
  int checked = 0;
  std::string reason;
  for (const auto& c : taken(matmul::test_cases())) {
    for (const auto& [dtype, tf32] : precisions_of(matmul_dw_op(), GetParam())) {
      for (const Store store : {Store::assign, Store::add}) {
        for (const bool bias : {true, false}) {
          Fixture fixture(static_cast<std::uint64_t>(c.M * 10007 + c.N * 101 + c.K));
          const auto args = matmul::make_dw(c, dtype, bias, store, fixture);
          const auto reduction = [&](std::string_view) { return static_cast<double>(c.M); };
          const auto refusal = check_variant(matmul_dw_op(), GetParam(), fixture, args, reduction, tf32);
          note(refusal, checked, reason);
        }
      }
    }
  }
  expect_some(checked, reason);
}

// The variants that use Hopper's copy engine. They require aligned matrices.
bool needs_packs(std::string_view variant) {
  return variant == "cuda.persistent" || variant == "cuda.stream_k" || variant == "cuda.block";
}
DeviceInfo a_hopper() {
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.gpu.major = 9;
  device.gpu.multiprocessors = 132;
  device.gpu.shared_bytes_per_block = 227 << 10;
  device.gpu.shared_bytes_per_multiprocessor = 228 << 10;
  return device;
}

enum class Unaligned { factor, result, rows };

// The sides are multiples of eight, so that only the address of one matrix or of its rows is unaligned.
constexpr matmul::Case kAligned{16, 72, 64};
Tensor shifted(Fixture& f, DType dtype, std::int64_t rows, std::int64_t cols, bool written) {
  const Shape wide{rows, cols + 8};
  return (written ? f.output(dtype, wide) : f.random(dtype, wide)).slice(1, 1, cols);
}
Tensor with_odd_rows(Fixture& f, DType dtype, std::int64_t rows, std::int64_t cols) {
  return f.random(dtype, {rows, cols + 1}).slice(1, 0, cols);
}

MatmulForward make_unaligned_forward(Unaligned which, Fixture& f) {
  const auto [M, N, K, padding] = kAligned;
  auto args = matmul::make_forward(kAligned, DType::bf16, true, Activation::none, f);
  if (which == Unaligned::factor) args.x = shifted(f, DType::bf16, M, K, false);
  if (which == Unaligned::rows) args.x = with_odd_rows(f, DType::bf16, M, K);
  if (which == Unaligned::result) args.out = shifted(f, DType::bf16, M, N, true);
  return args;
}
MatmulDx make_unaligned_dx(Unaligned which, Fixture& f) {
  const auto [M, N, K, padding] = kAligned;
  auto args = matmul::make_dx(kAligned, DType::bf16, Activation::none, f);
  if (which == Unaligned::factor) args.dout = shifted(f, DType::bf16, M, N, false);
  if (which == Unaligned::rows) args.dout = with_odd_rows(f, DType::bf16, M, N);
  if (which == Unaligned::result) args.dx = shifted(f, DType::bf16, M, K, true);
  return args;
}
MatmulDw make_unaligned_dw(Unaligned which, Fixture& f) {
  const auto [M, N, K, padding] = kAligned;
  auto args = matmul::make_dw(kAligned, DType::bf16, true, Store::assign, f);
  if (which == Unaligned::factor) args.x = shifted(f, DType::bf16, M, K, false);
  if (which == Unaligned::rows) args.dout = with_odd_rows(f, DType::bf16, M, N);
  if (which == Unaligned::result) {
    const Tensor padded = f.output(DType::f32, {N * K + 1});
    args.dweight = Tensor(padded.as<float>() + 1, DType::f32, {N, K}, padded.device);
  }
  return args;
}

// A variant must either take unaligned matrices, or refuse them with that reason.
template <class A, class Make>
void check_unaligned(const Op<A>& op, const std::string& name, const Make& make, double length) {
  int checked = 0;
  std::string reason;
  for (const Unaligned which : {Unaligned::factor, Unaligned::result, Unaligned::rows}) {
    Fixture fixture(static_cast<std::uint64_t>(which) + 1);
    const A args = make(which, fixture);
    const auto problem = op.problem(args);
    EXPECT_FALSE(problem.aligned) << problem.describe();
    EXPECT_EQ(problem.aligned_factors, which == Unaligned::result) << problem.describe();
    EXPECT_NE(problem.describe().find(" unaligned"), std::string::npos);
    const auto refusal = check_variant(op, name, fixture, args, [=](std::string_view) { return length; });
    note(refusal, checked, reason);
    if (!needs_packs(name)) continue;
    EXPECT_NE(refusal, "");
    auto aligned = problem;
    aligned.aligned = aligned.aligned_factors = true;
    EXPECT_EQ(find_variant(op, name).refuse(aligned, a_hopper()), "");
    EXPECT_TRUE(find_variant(op, name)
                    .refuse(problem, a_hopper())
                    .starts_with("a tensor does not begin at a multiple of 16 bytes"));
    ++checked;
  }
  expect_some(checked, reason);
}

TEST(Matmul, CudaKernelsRefuseWhatTheyCannotCount) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  int checked = 0;
  for (const auto& variant : matmul_forward_op().variants) {
    if (variant.name.find("tile128") == std::string_view::npos && !variant.name.starts_with("cuda.mma") &&
        variant.name != "cuda.block" && variant.name != "cuda.persistent" &&
        variant.name != "cuda.stream_k") {
      continue;
    }
    for (const std::int64_t rows : {kMost - 7, kMost + 1}) {  // multiples of 8
      MatmulForwardProblem p;
      p.M = rows, p.N = 8, p.K = 8;
      p.dtype = DType::bf16;
      p.aligned = p.aligned_factors = true;
      EXPECT_NE(variant.refuse(p, a_hopper()), "") << variant.name << " " << rows;
      ++checked;
    }
  }
  if (checked == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
}

TEST_P(Forward, RefusesOrTakesUnalignedMatrices) {
  check_unaligned(matmul_forward_op(), GetParam(), make_unaligned_forward, kAligned.K);
}
TEST_P(Dx, RefusesOrTakesUnalignedMatrices) {
  check_unaligned(matmul_dx_op(), GetParam(), make_unaligned_dx, kAligned.N);
}
TEST_P(Dw, RefusesOrTakesUnalignedMatrices) {
  check_unaligned(matmul_dw_op(), GetParam(), make_unaligned_dw, kAligned.M);
}

// The variants that a plan chooses for unaligned matrices, on the CPU and on a GPU, must take them.
template <class A, class Make>
void check_chosen(const Op<A>& op, const Make& make, double length) {
  std::vector<Device> devices{Device{}};
  if (cuda_device_count() > 0) devices.push_back({DeviceKind::cuda, 0});
  for (const Device device : devices) {
    Context context({}, device);
    for (const Unaligned which : {Unaligned::factor, Unaligned::result, Unaligned::rows}) {
      Fixture fixture(static_cast<std::uint64_t>(which) + 1);
      const A args = make(which, fixture);
      const auto chosen = choose(context, op, op.problem(args));
      EXPECT_FALSE(needs_packs(chosen.variant->name));
      EXPECT_EQ(
          check_variant(op, chosen.variant->name, fixture, args, [=](std::string_view) { return length; }),
          "");
    }
  }
}

TEST(Matmul, TheChosenVariantsTakeUnalignedMatrices) {
  if (!Context({}, Device{}).device().cpu.avx2) GTEST_SKIP() << "needs AVX2";
  check_chosen(matmul_forward_op(), make_unaligned_forward, kAligned.K);
  check_chosen(matmul_dx_op(), make_unaligned_dx, kAligned.N);
  check_chosen(matmul_dw_op(), make_unaligned_dw, kAligned.M);
}

#if WARPWRIGHT_CUDA
// Products without a depth. dw also has a bias gradient if x has no columns.
TEST(Matmul, OnlyKernelsThatMakeEmptyProductsTakeThem) {
  Fixture f = Fixture::of_shapes();
  const auto expect_refused = [](const auto& op, const auto& make) {
    for (const auto& variant : op.variants) {
      if (!variant.name.starts_with("cuda.") || variant.kernel->only_forced) continue;
      const bool takes = variant.name == "cuda.few_rows" || variant.name == "cuda.mma_block" ||
                         variant.name == "cuda.mma_persistent" || variant.name == "cuda.tile128" ||
                         variant.name == "cuda.tile128_persistent";
      const DType dtype = variant.kernel->dtypes.has(DType::bf16) ? DType::bf16 : DType::f32;
      DeviceInfo device = a_hopper();
      EXPECT_EQ(variant.refuse(op.problem(make(dtype)), device), takes ? "" : "an empty product")
          << variant.name;
    }
  };
  expect_refused(matmul_forward_op(), [&](DType dtype) {
    return matmul::make_forward({16, 8, 0}, dtype, true, Activation::none, f);
  });
  expect_refused(matmul_dx_op(), [&](DType dtype) {
    return matmul::make_dx({16, 0, 8}, dtype, Activation::none, f);
  });
  for (const matmul::Case& c : {matmul::Case{0, 16, 8}, {16, 8, 0}}) {
    expect_refused(matmul_dw_op(),
                   [&](DType dtype) { return matmul::make_dw(c, dtype, true, Store::add, f); });
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Matmul, Forward, ::testing::ValuesIn(variant_names(matmul_forward_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Matmul, Dx, ::testing::ValuesIn(variant_names(matmul_dx_op())), test_name);
INSTANTIATE_TEST_SUITE_P(Matmul, Dw, ::testing::ValuesIn(variant_names(matmul_dw_op())), test_name);

class HugeForward : public testing::VariantTest {};  // for the variants of a GPU
class HugeDx : public testing::VariantTest {};
class HugeDw : public testing::VariantTest {};

// 65,536 rows of GPT-2's logits with a short depth. Another M may use another algorithm, which sums in
// another order.
constexpr matmul::Case kHead{32, 50304, 64};
Repetition rows_of_logits(std::string_view logits, std::vector<std::string_view> once,
                          bool exact_sums = false) {
  return {.beyond = logits,
          .elements = std::int64_t{65536} * 50304,
          .once = std::move(once),
          .exact_sums = exact_sums,
          .same_bits = false};
}

TEST_P(HugeForward, GivesEveryRow) {
  Fixture fixture(6);
  const auto args = matmul::make_forward(kHead, DType::bf16, true, Activation::gelu_tanh, fixture);
  const auto reason = check_repeated(
      matmul_forward_op(), GetParam(), fixture, args, [](std::string_view) { return 64.0; },
      rows_of_logits("out", {"weight", "bias"}));
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeDx, GivesEveryRow) {
  Fixture fixture(7);
  const auto args = matmul::make_dx(kHead, DType::bf16, Activation::gelu_tanh, fixture);
  const auto reason = check_repeated(
      matmul_dx_op(), GetParam(), fixture, args, [](std::string_view) { return 50304.0; },
      rows_of_logits("dout", {"weight"}));
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST_P(HugeDw, SumsEveryRow) {
  Fixture fixture(8);
  const auto args = matmul::make_dw(kHead, DType::bf16, true, Store::add, fixture);
  const auto reason = check_repeated(
      matmul_dw_op(), GetParam(), fixture, args, [](std::string_view) { return 32.0; },
      rows_of_logits("dout", {"dweight", "dbias"}, true));
  if (!reason.empty()) GTEST_SKIP() << reason;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeForward);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Matmul, HugeForward, ::testing::ValuesIn(gpu_variant_names(matmul_forward_op())),
                         test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeDx);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Matmul, HugeDx, ::testing::ValuesIn(gpu_variant_names(matmul_dx_op())), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeDw);  // a build without CUDA has none
INSTANTIATE_TEST_SUITE_P(Matmul, HugeDw, ::testing::ValuesIn(gpu_variant_names(matmul_dw_op())), test_name);

template <class A>
void run_reference(const Op<A>& op, const A& args) {
  run_variant(op, find_variant(op, kReference), args, 1);
}

// loss = Σ act(x·Wᵀ + b) · dout. dx's activation is that of the layer before, so act' is applied to dout
// here.
TEST(MatmulReference, BackwardIsTheDerivativeOfForward) {
  Fixture fixture(1);
  const matmul::Case c{5, 4, 7};
  auto forward = matmul::make_forward(c, DType::f64, true, Activation::none, fixture);
  auto dx = matmul::make_dx(c, DType::f64, Activation::none, fixture);
  auto dw = matmul::make_dw(c, DType::f64, true, Store::assign, fixture);
  dx.weight = forward.weight;
  dw.x = forward.x;
  dw.dout = dx.dout;
  const auto loss = [&] {
    run_reference(matmul_forward_op(), forward);
    const auto out = elements_of(forward.out), dout = elements_of(dx.dout);
    double total = 0;
    for (std::size_t i = 0; i < out.size(); ++i) total += out[i] * dout[i];
    return total;
  };
  run_reference(matmul_dx_op(), dx);
  run_reference(matmul_dw_op(), dw);
  check_gradient(loss, forward.x, dx.dx, "dx");
  check_gradient(loss, forward.weight, dw.dweight, "dweight");
  check_gradient(loss, forward.bias, dw.dbias, "dbias");
}

// Two layers with act between them: loss = Σ act(preact)·Wᵀ · dout, differentiated with respect to preact.
TEST(MatmulReference, ActivationsOfDxAreTheDerivativesOfThoseOfForward) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
    Fixture fixture(2);
    auto identity = matmul::make_forward({5, 7, 7}, DType::f64, false, activation, fixture);
    for (std::int64_t i = 0; i < 49; ++i) identity.weight.as<double>()[i] = i % 8 == 0 ? 1.0 : 0.0;
    auto forward = matmul::make_forward({5, 4, 7}, DType::f64, false, Activation::none, fixture);
    forward.x = identity.out;
    auto dx = matmul::make_dx({5, 4, 7}, DType::f64, activation, fixture);
    dx.weight = forward.weight;
    dx.preact = identity.x;
    const auto loss = [&] {
      run_reference(matmul_forward_op(), identity);
      run_reference(matmul_forward_op(), forward);
      const auto out = elements_of(forward.out), dout = elements_of(dx.dout);
      double total = 0;
      for (std::size_t i = 0; i < out.size(); ++i) total += out[i] * dout[i];
      return total;
    };
    run_reference(matmul_dx_op(), dx);
    check_gradient(loss, identity.x, dx.dx, name_of(activation));
  }
}

TEST(Matmul, RefusesArgumentsThatDoNotFit) {
  Fixture fixture(3);
  Context context{ContextOptions{}};
  const auto good = matmul::make_forward({3, 40, 8}, DType::f32, true, Activation::none, fixture);
  auto wrong = good;
  wrong.weight = fixture.random(DType::f32, {40, 9});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = good;
  wrong.bias = fixture.random(DType::bf16, {40});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = good;
  wrong.out.strides[0] = 39;
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = good;
  wrong.out = fixture.output(DType::bf16, {3, 40});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = good;
  wrong.residual = fixture.random(DType::f32, {3, 39});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong.residual = fixture.random(DType::bf16, {3, 40});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = good;
  wrong.scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong = matmul::make_forward({3, 40, 8}, DType::bf16, true, Activation::none, fixture, {true, 1, true});
  wrong.residual = fixture.random(DType::bf16, {3, 40});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  wrong.residual = {};
  wrong.preact = fixture.output(DType::f32, {3, 40});
  EXPECT_THROW(matmul_forward(context, wrong), Error);
  auto dx = matmul::make_dx({3, 40, 8}, DType::f32, Activation::gelu_tanh, fixture);
  dx.activation = Activation::none;
  EXPECT_THROW(matmul_dx(context, dx), Error);
  auto dw = matmul::make_dw({3, 40, 8}, DType::bf16, true, Store::add, fixture);
  dw.dweight = fixture.random(DType::bf16, {40, 8});
  EXPECT_THROW(matmul_dw(context, dw), Error);
}

// A variant allocates and looks up everything in its first call.
TEST(Matmul, OnCudaCallsAreCapturedInAGraph) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  Fixture fixture(5);
  const matmul::Case c{65, 136, 72};
  const auto forward = matmul::make_forward(c, DType::bf16, true, Activation::gelu_tanh, fixture);
  const auto dx = matmul::make_dx(c, DType::bf16, Activation::gelu_tanh, fixture);
  const auto dw = matmul::make_dw(c, DType::bf16, true, Store::assign, fixture);
  Context context(ContextOptions{}, {DeviceKind::cuda, 0});
  std::vector<TensorUse> uses = uses_of(forward);
  for (const auto& more : {uses_of(dx), uses_of(dw)}) uses.insert(uses.end(), more.begin(), more.end());
  DeviceCopy copy(uses, context.device().device, context.stream());
  const auto run = [&] {
    matmul_forward(context, copy.moved(forward));
    matmul_dx(context, copy.moved(dx));
    matmul_dw(context, copy.moved(dw));
  };
  const auto outputs = [&] {
    copy.download(context.stream());
    std::vector<double> all;
    for (const Tensor& t : {forward.out, forward.preact, dx.dx, dw.dweight, dw.dbias}) {
      for (const double element : elements_of(t)) all.push_back(element);
    }
    return all;
  };
  run();
  const std::vector<double> called = outputs();
  const Graph graph(context.stream(), run);
  const auto forward_there = copy.moved(forward);
  const auto dw_there = copy.moved(dw);
  for (const Tensor& t :
       {forward_there.out, forward_there.preact, copy.moved(dx).dx, dw_there.dweight, dw_there.dbias}) {
    clear(t, context.stream());
  }
  graph.launch(context.stream());
  EXPECT_EQ(outputs(), called);
}

const std::string kSchedules[] = {"cuda.block", "cuda.persistent", "cuda.stream_k"};

// Tile edges and their neighbours, primes, and arbitrary sizes. N and K are mostly multiples of eight, which
// the variants with copies require. There are eight times 250 shapes; each runs half of the variants.
// Everything else is drawn independently, so that every variant meets each epilogue with each dtype. One
// shape in sixteen is larger: several tiles in each direction, with several slabs.
class RandomShapes : public ::testing::TestWithParam<int> {};

TEST_P(RandomShapes, OnCudaMatchTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  constexpr std::int64_t kTiles[] = {64, 128, 192, 256, 384, 512},
                         kPrimes[] = {1, 2, 3, 5, 7, 13, 31, 61, 127, 257};
  const std::string variants[] = {"cuda.block",     "cuda.persistent",     "cuda.stream_k",
                                  "cuda.mma_block", "cuda.mma_persistent", "cuda.mma_stream_k"};
  const auto first = static_cast<std::size_t>(GetParam()) * 250;
  std::mt19937 random(static_cast<unsigned>(GetParam() + 1));
  const auto size = [&](bool eights) {
    std::int64_t n = 1 + random() % 300;
    if (random() % 3 == 0)
      n = kTiles[random() % std::size(kTiles)] + static_cast<std::int64_t>(random() % 17) - 8;
    if (random() % 3 == 0) n = kPrimes[random() % std::size(kPrimes)];
    if (random() % 8 == 0) n *= 16;
    return eights ? (n + 7) / 8 * 8 : n;
  };
  for (std::size_t i = first; i < first + 250 && !HasFailure(); ++i) {
    const bool eights = random() % 5 != 0;
    const std::int64_t padding = random() % 3 == 0 ? 8 : 0, most = i % 16 == 0 ? 6'000'000 : 400'000;
    matmul::Case c{};
    do {
      c = {size(false), size(eights), size(eights), padding};
    } while (c.M * c.N * c.K > most);
    const DType dtype = random() % 4 == 0 ? DType::f16 : DType::bf16;
    const Activation activation = kActivations[random() % std::size(kActivations)];
    const matmul::Finishing& finishing = matmul::kFinishings[random() % std::size(matmul::kFinishings)];
    const Store store = random() % 2 == 0 ? Store::add : Store::assign;
    const bool bias = random() % 4 != 0;
    const std::size_t half = random() % 2;
    if (passed_over()) continue;
    for (std::size_t v = half; v < std::size(variants); v += 2) {
      const std::string& variant = variants[v];
      // These variants round a sum before its activation. If there are only a few results, such a rounding
      // dominates the error.
      if (variant.starts_with("cuda.mma") && activation != Activation::none &&
          std::min(c.M * c.N, c.M * c.K) < 256)
        continue;
      const auto length = [](std::int64_t n) {
        return [=](std::string_view) { return static_cast<double>(n); };
      };
      Fixture forward(i), dx(i), dw(i);
      check_variant(matmul_forward_op(), variant, forward,
                    matmul::make_forward(c, dtype, bias, activation, forward), length(c.K));
      check_variant(matmul_dx_op(), variant, dx, matmul::make_dx(c, dtype, activation, dx), length(c.N));
      Fixture finished(i), widened(i);
      check_variant(matmul_forward_op(), variant, finished,
                    matmul::make_forward(c, dtype, bias, Activation::none, finished, finishing), length(c.K));
      check_variant(matmul_dx_op(), variant, widened,
                    matmul::make_dx(c, dtype, Activation::none, widened, true), length(c.N));
      check_variant(matmul_dw_op(), variant, dw, matmul::make_dw(c, dtype, bias, store, dw), length(c.M));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Matmul, RandomShapes, ::testing::Range(0, 8));

#if WARPWRIGHT_CUDA
constexpr matmul::Schedule kAllSchedules[] = {matmul::Schedule::block, matmul::Schedule::persistent,
                                              matmul::Schedule::stream_k};

// A kernel of a selector's list, as an operation with one variant.
template <class Selection>
struct Tested {
  static inline matmul::Schedule schedule;
  static inline Selection selection;
};
template <class Selection, class A, class Make>
void check_selection(const Op<A>& op, matmul::Schedule schedule, const Selection& s, const Make& make,
                     double length, bool tf32 = false) {
  using Problem = typename A::Problem;
  using Now = Tested<Selection>;
  static constexpr Kernel<A> kSelected = {
      .needs = Needs::gpu,
      .dtypes = kGpuDTypes,
      .run = [](const Context& context,
                const A& moved) { matmul::cuda::run(context, moved, Now::schedule, Now::selection); },
      .workspace = [](const Problem& p,
                      const DeviceInfo&) { return matmul::cuda::workspace(p, Now::selection); }};
  const Variant<A> variants[] = {{"cuda.selected", &kSelected}, find_variant(op, kReference)};
  const Op<A> one{op.name, variants, op.problem};
  SCOPED_TRACE(fmt::format("{}, {}", name_of(schedule), matmul::describe(s)));
  Now::schedule = schedule;
  Now::selection = s;
  Fixture fixture(1);
  check_variant(
      one, "cuda.selected", fixture, make(fixture), [=](std::string_view) { return length; }, tf32);
}
template <class A, class Make>
void check_selections(const Op<A>& op, const Make& make, double length) {
  Fixture shapes = Fixture::of_shapes();
  const matmul::Request request = matmul::request_of(op.problem(make(shapes)));
  for (const matmul::Schedule schedule : kAllSchedules) {
    for (const matmul::Selection& s : matmul::selections(request, schedule, device_for("cuda.selected"))) {
      if (!passed_over()) check_selection(op, schedule, s, make, length);
    }
  }
}
// The same for mma.sync. With five workers, a worker has several tiles and the cuts of others'.
template <class A, class Make>
void check_mma_selections(const Op<A>& op, const Make& make, double length, bool tf32 = false) {
  Fixture shapes = Fixture::of_shapes();
  const auto problem = op.problem(make(shapes));
  for (const matmul::Schedule schedule : kAllSchedules) {
    for (matmul::MmaSelection s :
         matmul::mma_selections(matmul::request_of(problem), schedule, matmul::in_chunks(problem),
                                device_for("cuda.selected"))) {
      if (passed_over()) continue;
      check_selection(op, schedule, s, make, length, tf32);
      constexpr int kFew = 5;
      if (schedule == matmul::Schedule::block || s.workers <= kFew) continue;
      s.partial_bytes = s.partial_bytes / static_cast<std::size_t>(s.workers) * kFew;
      s.workers = kFew;
      check_selection(op, schedule, s, make, length, tf32);
    }
  }
}

// Checks all kernels, not only those that the selector chooses for such small products.
TEST(Matmul, OnCudaEveryKernelOfTheSelectorMatchesTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  Fixture shapes(9);
  const auto probe = matmul::make_forward({8, 8, 8}, DType::bf16, false, Activation::none, shapes);
  if (const auto reason = find_variant(matmul_forward_op(), "cuda.persistent")
                              .refuse(matmul_forward_op().problem(probe), device_for("cuda.persistent"));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (const matmul::Case& c : {matmul::Case{1, 8, 8, 0},
                                {70, 136, 1032, 8},
                                {131, 200, 264, 0},
                                {264, 72, 136, 8},
                                {700, 264, 72, 0}}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const Activation activation : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf}) {
        check_selections(
            matmul_forward_op(),
            [&](Fixture& f) { return matmul::make_forward(c, dtype, true, activation, f); },
            static_cast<double>(c.K));
        check_selections(
            matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(c, dtype, activation, f); },
            static_cast<double>(c.N));
      }
      for (const matmul::Finishing& finishing : matmul::kFinishings) {
        check_selections(
            matmul_forward_op(),
            [&](Fixture& f) { return matmul::make_forward(c, dtype, true, Activation::none, f, finishing); },
            static_cast<double>(c.K));
      }
      check_selections(
          matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(c, dtype, Activation::none, f, true); },
          static_cast<double>(c.N));
      for (const Store store : {Store::assign, Store::add}) {
        check_selections(
            matmul_dw_op(), [&](Fixture& f) { return matmul::make_dw(c, dtype, true, store, f); },
            static_cast<double>(c.M));
      }
    }
  }
}

// Puts each configuration of each kernel into a tuned table, and checks the kernel that then runs.
template <class A, class Make>
void check_tuned(const Op<A>& op, const Make& make, double length) {
  struct Untuned {
    ~Untuned() { context.set_tuned(nullptr); }
    Context& context;
  } const untuned{gpu_context({DeviceKind::cuda, 0}, false)};
  Context& context = untuned.context;
  Fixture probe(1);
  const A args = make(probe);
  const typename A::Problem problem = op.problem(args);
  DeviceCopy there(uses_of(args), context.device().device, context.stream());
  EXPECT_TRUE(op.problem(there.moved(args)) == problem);  // so the table's entry holds for both
  for (const auto& variant : op.variants) {
    if (variant.name == kReference || !variant.refuse(problem, context.device()).empty()) continue;
    for (const Configuration& configuration : variant.configurations(problem, context.device())) {
      if (passed_over()) continue;
      const std::string choice = choice_text(variant.name, configuration.text);
      SCOPED_TRACE(choice);
      auto table = std::make_shared<TunedTable>(TunedFor{});
      table->set(op.name, tuned_problem(problem, context.device()), choice);
      context.set_tuned(table);
      EXPECT_EQ(planned(context, op, problem).text, choice);
      Fixture fixture(1);
      check_variant(op, variant.name, fixture, make(fixture), [=](std::string_view) { return length; });
    }
  }
}

TEST(Matmul, OnCudaATunedConfigurationRunsAsNamed) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  std::mt19937 random(17);
  const auto eights = [&](unsigned most) { return 8 * static_cast<std::int64_t>(2 + random() % most); };
  for (int i = 0; i < 4; ++i) {
    const auto M = 16 + static_cast<std::int64_t>(random() % 200);
    const matmul::Case c{M, eights(20), eights(20), i % 2 == 0 ? 0 : 8};
    const DType dtype = i < 2 ? DType::bf16 : DType::f16;
    const Activation activation = kActivations[random() % std::size(kActivations)];
    const matmul::Finishing& finishing = matmul::kFinishings[random() % std::size(matmul::kFinishings)];
    const Store store = i % 2 == 0 ? Store::add : Store::assign;
    check_tuned(
        matmul_forward_op(), [&](Fixture& f) { return matmul::make_forward(c, dtype, true, activation, f); },
        static_cast<double>(c.K));
    check_tuned(
        matmul_forward_op(),
        [&](Fixture& f) { return matmul::make_forward(c, dtype, true, Activation::none, f, finishing); },
        static_cast<double>(c.K));
    check_tuned(
        matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(c, dtype, activation, f); },
        static_cast<double>(c.N));
    check_tuned(
        matmul_dw_op(), [&](Fixture& f) { return matmul::make_dw(c, dtype, true, store, f); },
        static_cast<double>(c.M));
  }
}

#if WARPWRIGHT_CUDA
template <class A>
void expect_forced_configurations(const Op<A>& op, const typename A::Problem& problem) {
  for (const char* name : {"cuda.block", "cuda.persistent", "cuda.stream_k", "cuda.mma_block",
                           "cuda.mma_persistent", "cuda.mma_stream_k"}) {
    const auto& variant = find_variant(op, name);
    DeviceInfo device = a_hopper();
    const std::vector<Configuration> all = variant.configurations(problem, device);
    EXPECT_FALSE(all.empty()) << name;
    for (const Configuration& configuration : all) {
      const ForcedChoices forced{{"matmul", choice_text(name, configuration.text)}};
      device.forced = &forced;
      EXPECT_EQ(variant.configuration(problem, device), configuration.text) << op.name << ' ' << name;
    }
  }
}

// No tuned table is needed for it.
TEST(Matmul, AForcedConfigurationIsSelected) {
  Fixture shapes = Fixture::of_shapes();
  const matmul::Case c{1024, 768, 768};
  const auto expect_all = [](const auto& op, const auto& args) {
    expect_forced_configurations(op, op.problem(args));
  };
  expect_all(matmul_forward_op(), matmul::make_forward(c, DType::bf16, true, Activation::none, shapes));
  expect_all(matmul_dx_op(), matmul::make_dx(c, DType::bf16, Activation::none, shapes));
  expect_all(matmul_dw_op(), matmul::make_dw(c, DType::bf16, true, Store::assign, shapes));
}
#endif

// Sides at and around the tiles, rows that cannot be copied 16 bytes at a time, and depths of one to many
// slabs.
// Every kernel on mma.sync, whatever the selector would choose. The parameters share the work among
// processes.
constexpr matmul::Case kMmaCases[] = {
    {1, 8, 8, 0}, {131, 200, 264, 0}, {257, 513, 65, 1}, {264, 136, 520, 8}, {391, 264, 72, 0}};

class MmaSync : public ::testing::TestWithParam<std::tuple<std::size_t, DType>> {};

TEST_P(MmaSync, OnCudaEveryKernelMatchesTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const matmul::Case& c = kMmaCases[std::get<0>(GetParam())];
  const DType dtype = std::get<1>(GetParam());
  const bool tf32 = dtype == DType::f32;
  check_mma_selections(
      matmul_forward_op(),
      [&](Fixture& f) { return matmul::make_forward(c, dtype, true, Activation::none, f); },
      static_cast<double>(c.K), tf32);
  check_mma_selections(
      matmul_forward_op(),
      [&](Fixture& f) {
        return matmul::make_forward(c, dtype, true, Activation::none, f, {true, 0.5f, true});
      },
      static_cast<double>(c.K), tf32);
  check_mma_selections(
      matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(c, dtype, Activation::none, f); },
      static_cast<double>(c.N), tf32);
  check_mma_selections(
      matmul_dw_op(), [&](Fixture& f) { return matmul::make_dw(c, dtype, true, Store::add, f); },
      static_cast<double>(c.M), tf32);
}
INSTANTIATE_TEST_SUITE_P(Matmul, MmaSync,
                         ::testing::Combine(::testing::Range(std::size_t{0}, std::size(kMmaCases)),
                                            ::testing::Values(DType::bf16, DType::f16, DType::f32)));

TEST(Matmul, OnCudaGroupsMakeOneTileAfterTheOther) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  const matmul::Case forward{4100, 1544, 8, 8}, dx{4100, 8, 1544, 8};
  if (!device_info({DeviceKind::cuda, 0}).gpu.runs_hopper_code()) GTEST_SKIP() << "needs a Hopper GPU";
  check_selections(
      matmul_forward_op(),
      [&](Fixture& f) { return matmul::make_forward(forward, DType::bf16, true, Activation::gelu_tanh, f); },
      8);
  const matmul::Case plain{2100, 1032, 8, 8};  // for tiles of up to 128 × 128
  check_selections(
      matmul_forward_op(),
      [&](Fixture& f) { return matmul::make_forward(plain, DType::bf16, true, Activation::none, f); }, 8);
  for (const matmul::Finishing& finishing : matmul::kFinishings) {
    check_selections(
        matmul_forward_op(),
        [&](Fixture& f) {
          return matmul::make_forward(forward, DType::bf16, true, Activation::none, f, finishing);
        },
        8);
  }
  check_selections(
      matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(dx, DType::bf16, Activation::gelu_tanh, f); },
      8);
  check_selections(
      matmul_dx_op(), [&](Fixture& f) { return matmul::make_dx(dx, DType::bf16, Activation::none, f, true); },
      8);
}
#endif

template <class A>
void expect_same_bits(const Op<A>& op, const std::string& name, const A& args, int runs) {
  const auto& variant = find_variant(op, name);
  Context& context = gpu_context({DeviceKind::cuda, 0}, false);
  const typename A::Problem problem = op.problem(args);
  if (!variant.refuse(problem, context.device()).empty()) return;
  context.reserve_scratch(std::max<std::size_t>(variant.workspace(problem, context.device()), 1));
  const auto uses = uses_of(args);
  DeviceCopy copy(uses, context.device().device, context.stream());
  std::vector<std::byte> first, now;
  for (int i = 0; i < runs; ++i) {
    variant.run(context, copy.moved(args));
    copy.download(context.stream());
    now.clear();
    for (const TensorUse& use : uses) {
      const auto* bytes = static_cast<const std::byte*>(use.tensor.data);
      if (use.access != Access::read) now.insert(now.end(), bytes, bytes + use.tensor.bytes());
    }
    if (i == 0) first = now;
    ASSERT_TRUE(now == first) << op.name << " " << name << ", run " << i;
  }
}

class RepeatedProduct : public testing::VariantTest {};

TEST_P(RepeatedProduct, HasTheSameBits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  constexpr int kRuns = 1000;
  const std::string& name = GetParam();
  Fixture fixture(7);
  // Few and many tiles. Their depths are divided both ways: with and without equal numbers of workers per
  // tile.
  expect_same_bits(matmul_dw_op(), name,
                   matmul::make_dw({3000, 520, 264}, DType::bf16, true, Store::assign, fixture), kRuns);
  expect_same_bits(matmul_dw_op(), name,
                   matmul::make_dw({2000, 1544, 776}, DType::bf16, false, Store::assign, fixture), kRuns);
  expect_same_bits(matmul_forward_op(), name,
                   matmul::make_forward({200, 264, 1544}, DType::bf16, true, Activation::none, fixture),
                   kRuns);
  expect_same_bits(matmul_forward_op(), name,
                   matmul::make_forward({1500, 1032, 264}, DType::bf16, true, Activation::gelu_tanh, fixture),
                   kRuns);
  for (const matmul::Finishing& finishing : {matmul::Finishing{true, 0.5f}, {true, 0.5f, true}}) {
    for (const matmul::Case& c : {matmul::Case{200, 264, 1544}, {1500, 1032, 264}}) {
      expect_same_bits(matmul_forward_op(), name,
                       matmul::make_forward(c, DType::bf16, true, Activation::none, fixture, finishing),
                       kRuns);
    }
  }
  expect_same_bits(matmul_dx_op(), name,
                   matmul::make_dx({200, 1544, 264}, DType::bf16, Activation::none, fixture, true), kRuns);
  expect_same_bits(matmul_dx_op(), name,
                   matmul::make_dx({200, 1544, 264}, DType::bf16, Activation::none, fixture), kRuns);
  expect_same_bits(matmul_dx_op(), name,
                   matmul::make_dx({1500, 264, 1032}, DType::bf16, Activation::gelu_tanh, fixture), kRuns);
}

INSTANTIATE_TEST_SUITE_P(OnCuda, RepeatedProduct,
                         ::testing::Values("cuda.block", "cuda.persistent", "cuda.stream_k",
                                           "cuda.mma_stream_k"),
                         test_name);

TEST(Matmul, OnCudaARowsBitsDoNotDependOnHowManyOthersThereAre) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  Fixture fixture(8);
  auto args = matmul::make_forward({9000, 776, 520}, DType::bf16, true, Activation::none, fixture);
  args.batch_invariant = true;
  const auto& variant = find_variant(matmul_forward_op(), "cuda.persistent");
  if (const auto reason = variant.refuse(matmul_forward_op().problem(args), device_for(variant.name));
      !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  run_variant(matmul_forward_op(), variant, args, 1);
  const auto all = elements_of(args.out.slice(0, 0, 300));
  for (const int rows : {1, 64, 300, 3000}) {
    auto few = args;
    few.x = args.x.slice(0, 0, rows);
    few.out = fixture.output(DType::bf16, {rows, 776});
    run_variant(matmul_forward_op(), variant, few, 1);
    const auto out = elements_of(few.out);
    for (std::size_t i = 0; i < std::min(out.size(), all.size()); ++i) ASSERT_EQ(out[i], all[i]) << rows;
  }
}

// Rows from the number in device memory on may hold arbitrary values.
TEST(Matmul, OnCudaTheNumberOfRowsIsReadFromTheDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  for (const std::string& name : kSchedules) {
    for (const int rows : {0, 1, 127, 128, 129, 300}) {
      Fixture fixture(6);
      auto args = matmul::make_forward({300, 264, 520}, DType::bf16, true, Activation::none, fixture);
      auto expected = args;
      expected.out = fixture.output(DType::bf16, {300, 264});
      args.rows = fixture.integers({rows});
      const auto& variant = find_variant(matmul_forward_op(), name);
      if (!variant.refuse(matmul_forward_op().problem(args), device_for(name)).empty()) continue;
      run_variant(matmul_forward_op(), variant, args, 1);
      run_variant(matmul_forward_op(), variant, expected, 1);
      const auto out = elements_of(args.out.slice(0, 0, rows)),
                 wanted = elements_of(expected.out.slice(0, 0, rows));
      const Deviation error = compare(out, wanted, DType::bf16);
      EXPECT_EQ(error.not_finite, 0) << name;
      EXPECT_LE(error.relative, 2 * tolerance(DType::bf16, 520)) << name;
    }
  }
}

// A kernel whose blocks have one tile each has a block for every tile, or is not offered.
TEST(Matmul, BlocksCoverEveryTile) {
  DeviceInfo device;
  device.gpu.multiprocessors = 132;
  matmul::Request request;
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5000}, std::int64_t{2'147'483'640}}) {
    request.extent = {.rows = rows, .cols = 8, .depth = 8};
    const auto list = matmul::selections(request, matmul::Schedule::block, device);
    EXPECT_FALSE(list.empty());
    for (const matmul::Selection& s : list) {
      EXPECT_EQ(s.workers, matmul::tiles_of(request.extent, matmul::kTiles[s.tile].shape))
          << rows << " rows, " << matmul::describe(s);
    }
  }
}

TEST(Matmul, VariantsAreForcedPerDirection) {
  Fixture fixture(4);
  ContextOptions options;
  options.force["matmul"] = "reference";
  options.force["matmul.dw"] = "cpu.avx2";
  Context context(options);
  const auto dw = matmul::make_dw({3, 4, 5}, DType::f32, true, Store::add, fixture);
  const auto dx = matmul::make_dx({3, 4, 5}, DType::f32, Activation::none, fixture);
  EXPECT_EQ(choose(context, matmul_dx_op(), matmul_dx_op().problem(dx)).variant->name, kReference);
  if (context.device().cpu.avx2) {
    EXPECT_EQ(choose(context, matmul_dw_op(), matmul_dw_op().problem(dw)).variant->name, "cpu.avx2");
  }
}

TEST(Matmul, WeightsWithoutALayoutAreNotPacked) {
  Fixture fixture(1);
  const Context context{ContextOptions{}};
  EXPECT_EQ(packed_layout(DType::f16, context.device()), "");
  EXPECT_THROW(packed_bytes(8, 8, DType::f16, context.device()), Error);
  const Tensor weight = fixture.random(DType::f16, {8, 8});
  EXPECT_THROW(pack_weight(context, weight, fixture.output(DType::u8, {128})), Error);
}

// The kernels of bf16 on processors of several kinds. Those with AMX run vdpbf16ps at half of fp32's rate.
TEST(Matmul, OnACpuBf16TakesTheFastestInstruction) {
  DeviceInfo device;
  const auto expect = [&](CpuFeatures cpu, std::string_view kernel, std::string_view layout) {
    device.cpu = cpu;
    const auto check = [&](const auto& op, auto problem) {
      problem.M = 256, problem.N = problem.K = 768, problem.dtype = DType::bf16;
      EXPECT_EQ(choose(device, op, problem).variant->name, kernel);
    };
    check(matmul_forward_op(), MatmulForwardProblem{});
    check(matmul_dx_op(), MatmulDxProblem{});
    check(matmul_dw_op(), MatmulDwProblem{});
    EXPECT_EQ(packed_layout(DType::bf16, device), layout);
  };
  CpuFeatures cpu{.avx2 = true, .avx512 = true};
  expect(cpu, "cpu.avx512", "");  // Ice Lake
  cpu.avx512_bf16 = true;
  expect(cpu, "cpu.avx512_bf16", "avx512_bf16.1");  // Zen 4
  cpu.avx512_fp16 = true;
  expect(cpu, "cpu.avx512", "");  // Emerald Rapids whose AMX is hidden, or not permitted
  cpu.amx_bf16 = true;
  expect(cpu, "cpu.amx_bf16", "amx_bf16.1");
}

// Every slab of every tile belongs to a worker. Each worker's share is one range. No two shares differ by
// more than a tile.
TEST(Matmul, StreamKSharesDifferByOneTileAtMost) {
  for (const int workers : {1, 2, 7, 66, 132}) {
    for (const std::int64_t depth : {1, 3, 12, 48, 1024}) {
      for (std::int64_t tiles = 1; tiles <= 5 * workers + 3; tiles += 1 + tiles / 50) {
        const std::int64_t whole = roofline::whole_tiles(tiles, workers), cut = (tiles - whole) * depth;
        EXPECT_EQ(whole % workers, 0);
        const std::int64_t sharers = roofline::sharers_of(cut, depth, workers);
        std::int64_t least = cut, most = 0, end = 0;
        for (int w = 0; w < workers; ++w) {
          EXPECT_EQ(roofline::share_begin(cut, sharers, w), end);
          const std::int64_t next = roofline::share_begin(cut, sharers, w + 1);
          least = std::min(least, next - end);
          most = std::max(most, next - end);
          end = next;
        }
        EXPECT_EQ(end, cut);
        EXPECT_LE(most - least, depth) << workers << " workers, " << tiles << " tiles of " << depth;
      }
    }
  }
}

TEST(Matmul, MeasuredTimesAreReadAsTheyWereWritten) {
  matmul::MeasuredProduct product;
  product.request.direction = matmul::Direction::dx;
  product.request.extent = {4096, 768, 3072};
  matmul::Selection selection;
  selection.tile = matmul::tile_of({128, 192, 1, 1, 2, 1});
  selection.workers = 66;
  const std::string ours = matmul::kernel_name(matmul::Schedule::persistent, selection);
  EXPECT_EQ(ours, "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]");
  const matmul::LibraryKernel kernel{256, 128, 1, 2, 3, 5};
  const std::string library = matmul::kernel_name(kernel);
  EXPECT_EQ(library, "cuda.cublaslt[256x128, clusters 1x2, depth in 3, option 5]");
  EXPECT_EQ(matmul::kernel_name(matmul::library_kernel_named(library)), library);
  product.seconds = {{ours, 3.12e-5}, {library, 2.5e-5}};
  const std::string line = product.line();
  const auto read = matmul::MeasuredProduct::read(line);
  EXPECT_EQ(read.line(), line);
  EXPECT_EQ(read.request.extent.depth, 3072);
  EXPECT_DOUBLE_EQ(read.seconds.at(ours), 3.12e-5);
  const auto with = [&](std::string_view old, const std::string& now) {
    std::string changed = line;
    return changed.replace(line.find(old), old.size(), now);
  };
  for (const std::string& wrong :
       {std::string(), line.substr(1), with("dx", "up"), with("4096", "0"), with("none", "relu6"),
        with("3.12e-05", "0"), with("3.12e-05", "true"), with("rows", "row")}) {
    EXPECT_THROW(matmul::MeasuredProduct::read(wrong), Error) << wrong;
  }
  for (const char* wrong : {"", "cuda.cublaslt", "cuda.cublaslt[]", "cuda.cublaslt[128x]",
                            "cuda.persistent[128x128]", "cuda.cublaslt[128x128, option 0]"}) {
    EXPECT_THROW(matmul::library_kernel_named(wrong), Error) << wrong;
  }
}

// In a model's step, other kernels run before and after a product. The predictions, and thus the choice,
// may differ there: tiles of 64×64 begin later, and the weights of a pair of 64×128 are loaded ahead.
TEST(Matmul, AProductOfAModelsStepHasTimesOfItsOwn) {
  MatmulForwardProblem problem;
  problem.M = 704;
  problem.N = problem.K = 768;
  problem.dtype = DType::f16;
  const auto seconds = [&](const matmul::TileShape& shape) {
    for (int tile = 0; tile < matmul::kTileCount; ++tile) {
      if (matmul::kTiles[tile].shape != shape) continue;
      return matmul::seconds_of(matmul::request_of(problem), matmul::Schedule::persistent, tile, 132);
    }
    return 0.0;
  };
  const double small = seconds({64, 64, 1, 1, 1, 1}), large = seconds({64, 128, 1, 2, 1, 1});
  problem.rows_counted = true;
  const double small_in_step = seconds({64, 64, 1, 1, 1, 1}), large_in_step = seconds({64, 128, 1, 2, 1, 1});
  EXPECT_GT(small_in_step, small);
  EXPECT_LT(large_in_step, large);
}

DeviceInfo gpu_of_capability_8(int minor, int multiprocessors, std::size_t shared) {
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.gpu = {8, minor, multiprocessors, shared - 1024, shared};
  device.l2_bytes = 6 << 20;
  return device;
}

// The tiles that the GPU has room for, in the number of blocks that their kernels are compiled for.
std::string tiles_that_fit(const DeviceInfo& device) {
  const roofline::Machine machine = matmul::mma_machine(device);
  EXPECT_EQ(machine.multiprocessors, device.gpu.multiprocessors);
  std::string tiles;
  for (const matmul::MmaTile& tile : matmul::kMmaTiles) {
    if (roofline::occupancy_of(machine, matmul::needs_of(tile)).blocks < tile.blocks) continue;
    tiles += fmt::format(" {}x{}/{}", tile.rows, tile.cols, tile.slab_bytes);
  }
  return tiles;
}

// sm_86 and sm_89 have 100 KB of shared memory, sm_80 has 164 and Hopper 228.
TEST(Matmul, TilesOfMmaSyncFitTheGpusWithEnoughSharedMemory) {
  const char* const small = " 128x256/64 128x128/64 64x64/64 64x128/64 128x64/64";
  EXPECT_EQ(tiles_that_fit(gpu_of_capability_8(6, 82, 100 << 10)), small);
  EXPECT_EQ(tiles_that_fit(gpu_of_capability_8(9, 128, 100 << 10)), small);
  EXPECT_EQ(tiles_that_fit(gpu_of_capability_8(0, 108, 164 << 10)),
            " 128x256/128 64x64/128 128x256/64 128x128/64 64x64/64 64x256/64 64x128/64 128x64/64");
  EXPECT_EQ(
      tiles_that_fit(a_hopper()),
      " 128x256/128 128x128/128 64x64/128 128x256/64 128x128/64 64x64/64 64x256/64 64x128/64 128x64/64");
}

// 133 tiles of 128 × 256 on 132 multiprocessors: two waves, or one and equal shares of the rest.
TEST(Matmul, OnMmaSyncStreamKIsPredictedToFillTheLastWave) {
  matmul::Request r;
  r.extent = {133 * 128, 256, 8192};
  const DeviceInfo device = a_hopper();
  const auto seconds = [&](matmul::Schedule schedule) {
    return matmul::select_mma(r, schedule, true, device).seconds;
  };
  EXPECT_LT(1.2 * seconds(matmul::Schedule::stream_k), seconds(matmul::Schedule::persistent));
  EXPECT_LE(seconds(matmul::Schedule::persistent), seconds(matmul::Schedule::block));
  const auto s = matmul::select_mma(r, matmul::Schedule::stream_k, true, device);
  const matmul::MmaTile& tile = matmul::kMmaTiles[s.tile];
  EXPECT_EQ(s.partial_bytes,
            static_cast<std::size_t>(s.workers) * static_cast<std::size_t>(tile.rows * tile.cols) * 4);
}

#if WARPWRIGHT_CUDA
TEST(Matmul, OnHopperKernelsOnMmaSyncComeLast) {
  MatmulForwardProblem problem;
  problem.M = 1024, problem.N = problem.K = 768, problem.dtype = DType::bf16;
  const auto cost = [&](std::string_view name) {
    return find_variant(matmul_forward_op(), name).cost(problem, a_hopper());
  };
  for (const char* name : {"cuda.mma_block", "cuda.mma_persistent", "cuda.mma_stream_k"}) {
    EXPECT_GT(cost(name), cost("cuda.persistent")) << name;
    EXPECT_LT(find_variant(matmul_forward_op(), name).cost(problem, gpu_of_capability_8(0, 108, 164 << 10)),
              1e-3);
  }
}
#endif

// If any size is zero, so that there is no tile or no depth, the selector still has a time and a tile.
TEST(Matmul, TheSelectorTakesEmptyProducts) {
  DeviceInfo device;
  device.gpu.multiprocessors = 132;
  for (const matmul::Case& c :
       {matmul::Case{0, 8, 8}, {8, 0, 8}, {8, 8, 0}, {0, 0, 0}, {300, 0, 3072}, {0, 3072, 768}}) {
    MatmulForwardProblem forward;
    forward.M = c.M, forward.N = c.N, forward.K = c.K, forward.dtype = DType::bf16;
    MatmulDxProblem dx;
    dx.M = c.M, dx.N = c.N, dx.K = c.K, dx.dtype = DType::bf16;
    MatmulDwProblem dw;
    dw.M = c.M, dw.N = c.N, dw.K = c.K, dw.dtype = DType::bf16;
    for (const matmul::Request& r :
         {matmul::request_of(forward), matmul::request_of(dx), matmul::request_of(dw)}) {
      for (const auto schedule :
           {matmul::Schedule::block, matmul::Schedule::persistent, matmul::Schedule::stream_k}) {
        EXPECT_GE(matmul::select(r, schedule, device).tile, 0);
        EXPECT_GE(matmul::select(r, schedule, device).seconds, 0);
      }
      EXPECT_GE(matmul::seconds_of(r, matmul::LibraryKernel{}), 0);
    }
  }
}

// One epilogue takes ten clocks, and the other group multiplies during eight of them. Nothing hides the
// other epilogue.
TEST(Matmul, TimelinesCountWhatOfTheEpiloguesIsHidden) {
  matmul::Timeline timeline;
  timeline.blocks = {{{{0, 100, 110}}, {{102, 200, 210}}}};
  EXPECT_DOUBLE_EQ(timeline.overlap(), 8.0 / 20);
  timeline.clocks_per_second = 2e9;
  EXPECT_EQ(timeline.json("a product", 0),
            R"({"product":"a product","clocks_per_second":2000000000.0,"overlap":0.4,"groups":)"
            R"([[{"products":0,"epilogue":100,"end":110}],[{"products":102,"epilogue":200,"end":210}]]})"
            "\n");
  EXPECT_DOUBLE_EQ(matmul::Timeline().overlap(), 0);
}

// Up to seventy workers on a machine with fewer processors. Every row and column belongs to a worker, in
// any grid.
TEST(Matmul, BlockingCoversTheProductForAnyNumberOfThreads) {
  for (int threads = 1; threads <= 70; ++threads) {
    DeviceInfo device = cpu_device_info(threads);
    for (const matmul::Extent e :
         {matmul::Extent{256, 768, 768}, {1, 50304, 768}, {50304, 768, 256}, {5, 3, 0}}) {
      const auto b = matmul::block(e, matmul::kTileAvx512, true, device);
      EXPECT_LE(b.row_teams * b.col_teams, threads);
      EXPECT_GE(b.depth * b.depth_chunks, e.depth);
      EXPECT_GE(b.workspace, b.b_offset + static_cast<std::size_t>(b.row_teams * b.col_teams) * b.b_bytes);
    }
  }
}

}  // namespace
}  // namespace warpwright::ops
