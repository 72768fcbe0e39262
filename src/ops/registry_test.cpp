#include "ops/registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "core/error.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/gelu/gelu.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/norm/norm.hpp"
#include "runtime/planned.hpp"

namespace warpwright::ops {
namespace {

TEST(Registry, EveryOperationEndsWithTheReferenceAndRunsSomewhere) {
  const auto ops = all_ops(cpu_device_info());
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end(),
                             [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; }));
  for (const OpInfo& op : ops) {
    ASSERT_FALSE(op.variants.empty()) << op.name;
    EXPECT_EQ(op.variants.back().name, "reference") << op.name;
    EXPECT_EQ(op.variants.back().refusal, "") << op.name;
  }
}

TEST(CallThreads, LittleWorkRunsOnTheCallingThreadAlone) {
  ContextOptions options;
  options.threads = 3;
  Context context(options);
  std::vector<int> threads;
  const Timing timing(context, [&](const Context::CallRecord&) { threads.push_back(context.threads()); });
  const Buffer buffer(std::size_t{8} << 20, Device{}, "test");
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{512}, std::int64_t{1} << 20}) {
    const Tensor x(buffer.data(), DType::f32, {elements});
    gelu_forward(context, {x, x, Activation::gelu_tanh});
    EXPECT_EQ(context.threads(), 3);
  }
  EXPECT_EQ(threads, (std::vector<int>{1, 1, 3}));
}

TEST(Registry, RefusalsAreAboutTheDevice) {
  DeviceInfo device = cpu_device_info();
  device.cpu = {.avx2 = true};
  for (const OpInfo& op : all_ops(device)) {
    for (const VariantInfo& variant : op.variants) {
      if (variant.name == "cpu.avx512") {
        EXPECT_EQ(variant.refusal, "needs AVX-512 (F, BW, DQ, VL)") << op.name;
      }
      if (variant.name == "cpu.avx2") {
        EXPECT_EQ(variant.refusal, "") << op.name;
      }
    }
  }
  device.cpu = {.avx2 = true,
                .avx_vnni = true,
                .avx512 = true,
                .avx512_vnni = true,
                .avx512_bf16 = true,
                .avx512_fp16 = true,
                .amx_bf16 = true,
                .amx_int8 = true};
  for (const OpInfo& op : all_ops(device)) {
    for (const VariantInfo& variant : op.variants) {
      const bool gpu = variant.name.rfind("cuda.", 0) == 0;
      EXPECT_EQ(variant.refusal, gpu ? "runs on an NVIDIA GPU" : "") << op.name << " " << variant.name;
    }
  }
}

TEST(Registry, KernelsForHopperNeedTheGpuAndABuildThatHasThem) {
  DeviceInfo device;
  EXPECT_EQ(refuse_device(Needs::hopper, device), "runs on an NVIDIA GPU");
  device.device = {DeviceKind::cuda, 0};
  device.gpu.major = 10;
  EXPECT_EQ(refuse_device(Needs::hopper, device), "needs a GPU of compute capability 9.0");
  device.gpu.major = 9;
  EXPECT_EQ(refuse_device(Needs::hopper, device), "");
  device.gpu.hopper_code = false;
  EXPECT_EQ(refuse_device(Needs::hopper, device), "this build has no code for sm_90a");
  EXPECT_EQ(refuse_device(Needs::gpu, device), "");
}

std::string usage_error(const std::string& name, const std::string& variant) {
  ContextOptions options;
  options.force[name] = variant;
  try {
    check_forced_names(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Registry, ForcedNamesAreChecked) {
  EXPECT_EQ(usage_error("norm", "cpu.avx2"), "");
  EXPECT_EQ(usage_error("norm.forward", "reference"), "");
  EXPECT_EQ(usage_error("adamw", "cpu.avx512"), "");
  const std::string error = usage_error("norm.forward", "cuda.imaginary");
  EXPECT_EQ(error.find("WARPWRIGHT_FORCE: norm.forward has no variant 'cuda.imaginary'; use one of: "), 0u);
  EXPECT_NE(error.find("cpu.avx512, cpu.avx2, cpu.portable, reference"), std::string::npos) << error;
  EXPECT_NE(usage_error("norm", "avx2"), "");
  EXPECT_NE(usage_error("norm.sideways", "reference").find("there is no operation"), std::string::npos);
  EXPECT_NE(usage_error("layernorm", "reference").find("norm.backward"), std::string::npos);
}

TEST(Registry, BracketsNeedAKernelAndAConfiguration) {
  for (const char* choice : {"[5 parts]", "cpu.portable[]", "[]"}) {
    ContextOptions options;
    options.force = {{"norm.backward", choice}};
    EXPECT_THROW(check_forced_names(options), UsageError) << choice;
  }
}

// The full name has precedence: the variant forced by the folder's name is then not even checked.
TEST(Registry, TheFullNameGoesFirst) {
  ContextOptions options;
  options.force = {{"residual", "cpu.imaginary"}, {"residual.forward", "reference"}};
  EXPECT_THROW(check_forced_names(options), UsageError);
  options.force["residual.backward"] = "cpu.avx2";
  EXPECT_NO_THROW(check_forced_names(options));
}

TEST(Registry, AConfigurationMayHaveCommas) {
  setenv("WARPWRIGHT_FORCE",
         "norm=cpu.avx2,matmul.dw=cuda.persistent[128x192, in turns],"
         "gated_linear=cuda.separate[cuda.block[64x64, 2 groups], cuda.packed[16 bytes]],gelu=reference",
         1);
  const ForcedChoices force = ContextOptions::from_environment().force;
  unsetenv("WARPWRIGHT_FORCE");
  EXPECT_EQ(force, (ForcedChoices{
                       {"norm", "cpu.avx2"},
                       {"matmul.dw", "cuda.persistent[128x192, in turns]"},
                       {"gated_linear", "cuda.separate[cuda.block[64x64, 2 groups], cuda.packed[16 bytes]]"},
                       {"gelu", "reference"}}));
}

// The choice for a problem whose kernel has the configuration "64 parts".
std::string choice_if_forced(const std::string& choice) {
  ContextOptions options;
  options.force = {{"norm.backward", choice}};
  Context context{options};
  NormBackwardProblem problem;
  problem.N = 10000, problem.C = 8;
  return planned(context, norm_backward_op(), problem).text;
}

TEST(Registry, AForcedConfigurationIsTakenOrRefused) {
  EXPECT_EQ(usage_error("norm.backward", "cpu.portable[65 parts]"), "");  // depends on the problem
  EXPECT_EQ(choice_if_forced("cpu.portable"), "cpu.portable[64 parts]");
  EXPECT_EQ(choice_if_forced("cpu.portable[64 parts]"), "cpu.portable[64 parts]");
  const std::pair<const char*, const char*> wrong[] = {
      {"cpu.portable[65 parts]", "it has 64 parts"},
      {"cpu.portable[]", "it has 64 parts"},
      {"cpu.portable[64 parts", "there is no variant cpu.portable[64 parts;"}};
  for (const auto& [choice, message] : wrong) {
    try {
      choice_if_forced(choice);
      ADD_FAILURE() << choice;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

// The kernel to compare with is first in the list and costs nothing. It is left out all the same.
TEST(Registry, AKernelThatMustBeForcedIsNotChosen) {
  static constexpr Kernel<GeluForward> kRung{
      .needs = Needs::cpu, .dtypes = kCpuDTypes, .run = nullptr, .only_forced = true};
  static constexpr Kernel<GeluForward> kOther{.needs = Needs::cpu, .dtypes = kCpuDTypes, .run = nullptr};
  const std::vector<Variant<GeluForward>> variants{{"cpu.rung", &kRung}, {"cpu.other", &kOther}};
  const Op<GeluForward> op{"gelu.forward", variants, nullptr};
  EXPECT_EQ(choose(Context{ContextOptions{}}, op, GeluProblem{}).text, "cpu.other");
  ContextOptions options;
  options.force = {{"gelu", "cpu.rung"}};
  EXPECT_EQ(choose(Context{options}, op, GeluProblem{}).text, "cpu.rung");
}

// A kernel that gives other bits in every run must never run unasked.
TEST(Registry, OnlyForcedKernelsMayNotRepeatTheirBits) {
  const auto check = [](const auto& op) {
    for (const auto& variant : op.variants) {
      EXPECT_TRUE(variant.kernel->repeats || variant.kernel->only_forced) << op.name << ' ' << variant.name;
    }
  };
  check(norm_forward_op()), check(norm_backward_op()), check(embedding_forward_op());
  check(embedding_backward_op()), check(gelu_forward_op()), check(gelu_backward_op());
}

// Records one call and returns the plan's hash.
std::uint64_t hash_after(Context& context, std::int64_t elements) {
  Recorder recorder;
  const Recording recording(context, recorder);
  const Tensor x = recorder.allocate("x", DType::f32, {elements}, Category::batch);
  gelu_forward(context, {x, x, Activation::gelu_tanh});
  return context.plan_hash();
}

// The test meets more problems than a Context keeps, as a model does whose shapes vary from call to call.
TEST(Registry, AProblemThatReturnsDoesNotChangeThePlan) {
  Context context{ContextOptions{}};
  const auto meet_all = [&] {
    std::uint64_t hash = 0;
    for (std::int64_t n = 1; n <= 3 * static_cast<std::int64_t>(kKeptProblems); ++n) {
      hash = hash_after(context, n);
    }
    return hash;
  };
  const std::uint64_t first = meet_all();
  EXPECT_EQ(meet_all(), first);
}

// Otherwise a server's Context would grow with every length of a batch.
TEST(Registry, OnlyRecordedCallsAreInThePlan) {
  Context context{ContextOptions{}};
  const std::uint64_t before = context.plan_hash();
  std::vector<float> x(100);
  const Tensor tensor(x.data(), DType::f32, {100});
  gelu_forward(context, {tensor, tensor, Activation::gelu_tanh});
  EXPECT_EQ(context.plan_hash(), before);
  EXPECT_NE(hash_after(context, 100), before);  // the choice was made before
}

// A table with one choice for one problem of gelu.forward.
std::shared_ptr<const TunedTable> table_of(const GeluProblem& problem, const std::string& choice) {
  auto table = std::make_shared<TunedTable>(TunedFor{});
  table->set("gelu.forward", problem.describe(), choice);
  return table;
}

TEST(Registry, AMeasuredChoiceComesBeforeAPredictedOne) {
  GeluProblem problem, other;
  problem.elements = 1000;
  other.elements = 1001;
  Context untuned{ContextOptions{}};
  const std::string predicted = planned(untuned, gelu_forward_op(), problem).text;
  ASSERT_NE(predicted, kReference);

  ContextOptions options;
  options.tuned = table_of(problem, "reference");
  Context tuned{options};
  EXPECT_EQ(planned(tuned, gelu_forward_op(), problem).text, kReference);
  EXPECT_NE(hash_after(tuned, 1000), hash_after(untuned, 1000));
  EXPECT_EQ(planned(tuned, gelu_forward_op(), other).text, predicted);
  tuned.set_tuned(nullptr);
  EXPECT_EQ(planned(tuned, gelu_forward_op(), problem).text, predicted);

  options.force = {{"gelu", std::string(parts_of(predicted).kernel)}};
  Context forced{options};
  EXPECT_EQ(planned(forced, gelu_forward_op(), problem).text, predicted);
}

// A Context keeps the scratch of a choice. It depends on the number of threads.
TEST(Registry, ScratchFollowsTheNumberOfThreads) {
  ContextOptions options;
  options.threads = 1;
  Context context(options);
  MatmulForwardProblem problem;
  problem.M = 4096;
  problem.N = problem.K = 512;
  const auto planned_scratch = [&] {
    const Choice<MatmulForward>& choice = planned(context, matmul_forward_op(), problem);
    EXPECT_EQ(choice.workspace, choice.variant->workspace(problem, context.device()));
    return choice.workspace;
  };
  const std::size_t of_one = planned_scratch();
  context.set_threads(4);
  EXPECT_NE(planned_scratch(), of_one);
}

TEST(Registry, AMeasuredChoiceThatCannotRunIsAnError) {
  GeluProblem problem;
  problem.elements = 1000;
  for (const char* choice : {"cuda.packed", "cpu.imaginary", "reference[4 workers]", ""}) {
    ContextOptions options;
    options.tuned = table_of(problem, choice);
    Context context{options};
    try {
      planned(context, gelu_forward_op(), problem);
      ADD_FAILURE() << choice;
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "gelu.forward");
      EXPECT_NE(error.remedy().find("warpwright tune"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace warpwright::ops
