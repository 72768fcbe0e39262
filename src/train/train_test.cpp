#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "data/shard.hpp"
#include "model/decoder_files.hpp"
#include "model/safetensors.hpp"
#include "ops/adamw/master.hpp"
#include "ops/element.hpp"
#include "runtime/file.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"
#include "runtime/test_child.hpp"
#include "runtime/test_folder.hpp"
#include "train/checkpoint.hpp"
#include "train/learning_rate.hpp"
#include "train/outlier.hpp"
#include "train/trainer.hpp"
#include "train/trainer_fixture.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

TEST(LearningRateSchedule, WarmsUpToThePeakAndEndsAtTheFinalFraction) {
  for (const LearningRateSchedule::Kind kind :
       {LearningRateSchedule::Kind::cosine, LearningRateSchedule::Kind::linear,
        LearningRateSchedule::Kind::wsd}) {
    const LearningRateSchedule s{kind, 1.0, 10, 100, 0.1, 0.2};
    EXPECT_DOUBLE_EQ(s.learning_rate(0), 0.1);
    EXPECT_DOUBLE_EQ(s.learning_rate(9), 1.0);
    EXPECT_NEAR(s.learning_rate(99), 0.1, 1e-12);
    for (std::int64_t i = 10; i < 100; ++i) EXPECT_LE(s.learning_rate(i), s.learning_rate(i - 1));
  }
  const LearningRateSchedule wsd{LearningRateSchedule::Kind::wsd, 1.0, 10, 100, 0.0, 0.2};
  EXPECT_DOUBLE_EQ(wsd.learning_rate(79), 1.0);
  EXPECT_LT(wsd.learning_rate(80), 1.0);
  const LearningRateSchedule constant{LearningRateSchedule::Kind::constant, 0.5, 0, 10, 0.0, 0.2};
  EXPECT_DOUBLE_EQ(constant.learning_rate(9), 0.5);
  const LearningRateSchedule one{LearningRateSchedule::Kind::cosine, 1.0, 0, 1, 0.25, 0.2};
  EXPECT_DOUBLE_EQ(one.learning_rate(0), 0.25);
  EXPECT_THROW((LearningRateSchedule{LearningRateSchedule::Kind::cosine, -1.0, 0, 1, 0, 0.2}.validate()),
               UsageError);
  EXPECT_THROW((LearningRateSchedule{LearningRateSchedule::Kind::cosine, 1.0, 5, 4, 0, 0.2}.validate()),
               UsageError);
}

TEST(OutlierDetector, FindsASpikeOnlyWhenItsWindowIsFull) {
  OutlierDetector detector(3, 8);
  for (int i = 0; i < 7; ++i) detector.add(i % 2);
  EXPECT_FALSE(detector.is_outlier(100));
  detector.add(1);
  EXPECT_TRUE(detector.is_outlier(100));
  EXPECT_FALSE(detector.is_outlier(1));
  EXPECT_FALSE(detector.is_outlier(-100));  // only upwards
  OutlierDetector copy(3, 8);
  copy.restore(detector.values());
  EXPECT_DOUBLE_EQ(copy.z_score(5), detector.z_score(5));
  EXPECT_FALSE(OutlierDetector(0, 1).is_outlier(1e9));
}

class TrainerOnDevice : public TrainerTest, public ::testing::WithParamInterface<DeviceKind> {
 protected:
  struct Weights {
    std::vector<double> before, after;
  };
  // A parameter, or its master.
  static std::vector<double> full_precision(const TrainingStep& step, const std::string& name,
                                            const Stream& stream) {
    const DecoderParameters& parameters = step.tensors().parameters;
    const std::vector<Tensor>& remainders = step.tensors().optimizer.remainders;
    std::size_t index = 0;
    for (auto p = parameters.begin(); p->name != name; ++p) ++index;
    const HostView parameter = downloaded(parameters.at(name), stream);
    const HostView remainder = remainders.empty() ? HostView() : downloaded(remainders.at(index), stream);
    std::vector<double> values;
    for (std::int64_t i = 0; i < parameter.tensor().elements(); ++i) {
      values.push_back(remainders.empty()
                           ? ops::load_element(parameter.tensor(), i)
                           : ops::adamw_kernels::master_of(parameter.tensor().as<bf16>()[i].bits,
                                                           remainder.tensor().as<std::int16_t>()[i]));
    }
    return values;
  }
  // A matrix in full precision, before and after steps on samples that step and place in the step alone give.
  Weights weights_of_steps(const StepOptions& o, std::int64_t steps, double learning_rate) {
    Context context(ContextOptions{}, device_);
    TrainingStep step(context, o);
    step.allocate();
    o.model->initialize(1, step.full_precision());
    const auto weights = [&] { return full_precision(step, "h.1.mlp.c_fc.weight", context.stream()); };
    Weights w{weights(), {}};
    for (std::int64_t s = 1; s <= steps; ++s) {
      const PhiloxStream tokens(5, 6, static_cast<std::uint32_t>(s));
      std::uint64_t drawn = 0;
      step.begin();
      for (std::int64_t slice = 0; slice < o.slices; ++slice) {
        const TrainingStep::HostBatch batch = step.host_batch();
        for (std::int64_t i = 0; i < o.B * o.T; ++i) {
          const PhiloxCounter random = tokens.block(drawn++);
          batch.tokens.as<std::int32_t>()[i] = static_cast<std::int32_t>(random[0] % kVocab);
          batch.targets.as<std::int32_t>()[i] = static_cast<std::int32_t>(random[1] % kVocab);
        }
        step.forward_backward();
      }
      step.gradient_norm();
      step.update(learning_rate, s);
      step.collect();
    }
    w.after = weights();
    return w;
  }

  void SetUp() override {
    device_ = {GetParam(), 0};
    if (GetParam() == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, TrainerOnDevice, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& kind) { return kind.param == DeviceKind::cpu ? "cpu" : "cuda"; });

TEST_P(TrainerOnDevice, LearnsAndTheSameSeedGivesTheSameBitsOnAnyNumberOfThreads) {
  TrainOptions o = options("a");
  o.schedule.steps = 60;
  o.val_every = 60;
  o.sample_every = 60;
  o.sample_tokens = 10;
  const auto losses = train(o);
  EXPECT_NEAR(losses.front(), std::log(kVocab), 0.3);
  EXPECT_LT(losses.back(), 2.5);
  EXPECT_LT(val_loss_, 2.5);
  EXPECT_EQ(sample_.size(), 10u);
  o.out = root_ / "b";
  EXPECT_EQ(train(o, -1, 1), losses);
  EXPECT_EQ(weights("a"), weights("b"));
  o.out = root_ / "c";
  o.seed = 7;
  train(o);
  EXPECT_NE(weights("a"), weights("c"));
}

// The losses are no further from those with masters than those are from step to step.
TEST_P(TrainerOnDevice, WithoutMastersItLearnsAsWithThem) {
  TrainOptions o = options("with");
  o.step.dtype = DType::bf16;
  o.schedule.steps = 60;
  const auto with = train(o);
  o.step.master_weights = false;
  o.out = root_ / "without";
  const auto without = train(o);
  double apart = 0, from_step_to_step = 0;
  for (std::size_t i = 1; i < with.size(); ++i) {
    apart += std::abs(without[i] - with[i]);
    from_step_to_step += std::abs(with[i] - with[i - 1]);
  }
  EXPECT_LT(apart, from_step_to_step);
  EXPECT_LT(without.back(), 2.5);
  o.out = root_ / "again";
  EXPECT_EQ(train(o, -1, 1), without);
  EXPECT_EQ(weights("again"), weights("without"));
  EXPECT_NE(weights("with"), weights("without"));
}

// Updates of 1e-5 are a twelfth of bf16's spacing at 0.02, the weights' deviation: rounding to nearest would
// lose them. The weights must move as far as the masters do, in the same direction, and deviate from it by no
// more than independent random rounding in each step explains: rounding an update u to a spacing of ulp has a
// variance of at most u · ulp.
TEST_P(TrainerOnDevice, WithoutMastersSmallUpdatesAreNotLost) {
  constexpr int kSteps = 12;
  constexpr double kRate = 1e-5;
  StepOptions o = options("none").step;
  o.dtype = DType::bf16;
  const Weights with = weights_of_steps(o, kSteps, kRate);
  o.master_weights = false;
  const Weights without = weights_of_steps(o, kSteps, kRate);
  // |m| / √v with its corrections, by Cauchy and Schwarz.
  const double quotient = (1 - o.beta1) / std::sqrt((1 - o.beta2) * (1 - o.beta1 * o.beta1 / o.beta2));
  double along = 0, square = 0, along_variance = 0, apart = 0, variance = 0;
  for (std::size_t i = 0; i < with.before.size(); ++i) {
    const double way = with.after[i] - with.before[i], moved = without.after[i] - without.before[i];
    const double ulp = std::ldexp(1, std::ilogb(without.before[i]) - 7);
    const double update = kRate * (quotient + o.weight_decay * std::abs(without.before[i]));
    along += way * moved;
    square += way * way;
    along_variance += way * way * kSteps * update * ulp;
    apart += (moved - way) * (moved - way);
    variance += kSteps * update * ulp;
  }
  EXPECT_NEAR(along / square, 1, 6 * std::sqrt(along_variance) / square);
  EXPECT_LT(6 * std::sqrt(along_variance), square) << "or the test says nothing";
  EXPECT_LT(apart, variance);
}

// The random numbers know nothing of the slice: in another one only what gradients differ by shows.
TEST_P(TrainerOnDevice, SlicesRoundAlike) {
  StepOptions o = options("none").step;
  o.dtype = DType::bf16;
  o.master_weights = false;
  const auto different = [](const Weights& a, const Weights& b) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.after.size(); ++i) count += a.after[i] != b.after[i];
    return count;
  };
  const Weights first = weights_of_steps(o, 1, 1e-4);
  StepOptions other = o;
  other.B = o.B * o.slices;
  other.slices = 1;
  const Weights in_one = weights_of_steps(other, 1, 1e-4);
  other = o;
  other.rounding_seed = 1;
  const Weights other_seed = weights_of_steps(other, 1, 1e-4);
  EXPECT_GT(different(first, other_seed), first.after.size() / 10);
  EXPECT_LT(20 * different(first, in_one), different(first, other_seed));
}

TEST_P(TrainerOnDevice, FollowsTheCpuInFp32) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainOptions o = options(fmt::format("device_{}", name_of(dtype)));
    o.schedule.steps = 60;
    o.step.dtype = dtype;
    const auto losses = train(o);
    o.out = root_ / fmt::format("cpu_{}", name_of(dtype));
    o.step.dtype = DType::f32;
    device_ = {};
    const auto cpu = train(o);
    device_ = {GetParam(), 0};
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_NEAR(losses[i], cpu[i], dtype == DType::f32 ? 5e-3 : 5e-2)
          << name_of(dtype) << " step " << i + 1;
    }
  }
}

TEST_P(TrainerOnDevice, NormsMoveByLessThanBf16Tells) {
  TrainOptions o = options("norms");
  o.step.dtype = DType::bf16;
  o.schedule = {LearningRateSchedule::Kind::constant, 1e-5, 0, 12};
  train(o);
  const DecoderWeights model = load_weights(root_ / "norms" / "model", DType::f32);
  const Tensor& weight = model.parameters.at("h.0.ln_1.weight");
  for (std::int64_t i = 0; i < weight.elements(); ++i) {
    const float moved = std::abs(weight.as<float>()[i] - 1);
    EXPECT_GT(moved, 0) << i;
    EXPECT_LT(moved, 0x1p-9f) << i;
  }
}

TEST_P(TrainerOnDevice, ResumingContinuesBitForBit) {
  for (const auto& [dtype, masters] :
       {std::pair{DType::f32, true}, std::pair{DType::bf16, true}, std::pair{DType::bf16, false}}) {
    const std::string name = fmt::format("{}{}", name_of(dtype), masters);
    TrainOptions whole = options("whole" + name);
    whole.step.dtype = dtype;
    whole.step.master_weights = masters;
    if (dtype == DType::f32) whole.skip_norm_z = 50;  // its window is part of the state
    const auto losses = train(whole);
    TrainOptions parts = whole;
    parts.out = root_ / ("parts" + name);
    train(parts, 5);
    EXPECT_FALSE(finished_);
    parts.resume = true;
    const auto rest = train(parts);
    EXPECT_TRUE(finished_);
    // A GPU may have had a step in flight when it was told to stop.
    EXPECT_GE(rest.size() + 6, losses.size());
    EXPECT_EQ(rest,
              std::vector<double>(losses.end() - static_cast<std::ptrdiff_t>(rest.size()), losses.end()));
    EXPECT_EQ(weights("whole" + name), weights("parts" + name));
    EXPECT_EQ(read_file(root_ / ("parts" + name) / "metrics.jsonl", 1 << 20).find("\"step\":13"),
              std::string::npos);
  }
}

TEST_P(TrainerOnDevice, SlicesSplitTheSameSamples) {
  std::vector<std::vector<double>> runs;
  for (const std::int64_t B : {1, 2, 4, 8}) {
    TrainOptions o = options(fmt::format("split{}", B));
    o.step.B = B;
    o.step.slices = 8 / B;
    runs.push_back(train(o));
  }
  for (const auto& run : runs) {
    for (std::size_t i = 0; i < run.size(); ++i) EXPECT_NEAR(run[i], runs[0][i], 2e-4 * runs[0][i]);
  }
}

TEST_F(TrainerTest, OverfitsOneBatch) {
  TrainOptions o = options("overfit");
  o.overfit = true;
  o.schedule.steps = 150;
  EXPECT_LT(train(o).back(), 0.2);
}

// The matrices have one moment, in the plan and in the checkpoint, and Muon's scratch shares the activations'
// memory.
TEST_P(TrainerOnDevice, MuonLearnsWithOneMomentOfTheMatrices) {
  TrainOptions o = options("muon");
  o.step.optimizer = Optimizer::muon;
  o.overfit = true;
  o.schedule.steps = 150;
  EXPECT_LT(train(o).back(), 0.2);
  const SafetensorsFile file(list_checkpoints(o.out).back().folder / "optimizer.safetensors");
  for (const std::string matrix : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
    EXPECT_TRUE(file.find("m.h.1." + matrix + ".weight"));
    EXPECT_FALSE(file.find("v.h.1." + matrix + ".weight"));
    EXPECT_TRUE(file.find("v.h.1." + matrix + ".bias"));
  }
  EXPECT_TRUE(file.find("v.wte.weight"));
  const auto planned = [&](Optimizer optimizer) {
    Context context(ContextOptions{}, device_);
    StepOptions step = o.step;
    step.optimizer = optimizer;
    return TrainingStep(context, step).plan();
  };
  const MemoryPlan muon = planned(Optimizer::muon), adamw = planned(Optimizer::adamw);
  const auto bytes = [](const MemoryPlan& plan, Category category) {
    return plan.arena_bytes[static_cast<std::size_t>(category)];
  };
  constexpr std::size_t kMatrices = 2 * 12 * kChannels * kChannels * sizeof(float);  // of two layers
  EXPECT_EQ(bytes(adamw, Category::optimizer) - bytes(muon, Category::optimizer), kMatrices);
  EXPECT_EQ(bytes(adamw, Category::activations), bytes(muon, Category::activations));
}

// Recomputed activations equal those that were kept, on a CPU to the bit.
TEST_P(TrainerOnDevice, RecomputingChangesMemoryNotResults) {
  TrainOptions o = options("kept");
  const auto kept = train(o);
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
  for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::norm, Recompute::block}) {
    o.step.recompute = recompute;
    o.out = root_ / fmt::format("recompute{}", static_cast<int>(recompute));
    const auto losses = train(o);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_NEAR(losses[i], kept[i], GetParam() == DeviceKind::cpu ? 0 : 1e-4);
    }
    Context context(ContextOptions{}, device_);
    StepOptions deep = o.step;
    deep.model = decoder(1, kChannels, 12);
    const std::size_t needed = TrainingStep(context, deep).plan().total_bytes();
    EXPECT_LT(needed, bytes);
    bytes = needed;
  }
}

// As few parts as fit, and of these the most equal.
TEST(LogitsRows, KeepWithinTheirLimit) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto parts = [](std::int64_t N, std::int64_t rows) { return (N + rows - 1) / rows; };
  for (const std::int64_t vocab : {128, 300, 32000, 49152, 50304, 128256, 151936, 262144}) {
    for (const std::int64_t row : {2 * vocab, 4 * vocab}) {
      for (const std::int64_t most : {kMiB, 3 * kMiB, 256 * kMiB, 2048 * kMiB, kMiB * kMiB}) {
        for (const std::int64_t N : {1, 2, 3, 255, 1024, 12288, 21345, 21346, 42690, 65536, 1048575}) {
          const std::int64_t rows = logits_rows(N, row, most), fit = std::max<std::int64_t>(1, most / row);
          ASSERT_GE(rows, 1);
          ASSERT_LE(rows, std::min(N, fit)) << N << " tokens of " << row << " bytes in " << most;
          ASSERT_EQ(parts(N, rows), parts(N, fit));
          ASSERT_TRUE(rows == 1 || parts(N, rows - 1) > parts(N, rows));
        }
      }
    }
  }
  EXPECT_EQ(logits_rows(1000, 2 * kMiB, kMiB), 1);  // a single token takes more
  EXPECT_EQ(logits_rows(3, 4, 7), 1);
  EXPECT_EQ(logits_rows(10, 1, 9), 5);
  // GPT-2 with the default limit, in bf16 and in fp32.
  const std::int64_t most = StepOptions().logits_mib << 20;
  EXPECT_EQ(logits_rows(16384, 2 * 50304, most), 16384);
  EXPECT_EQ(logits_rows(65536, 2 * 50304, most), 16384);
  EXPECT_EQ(logits_rows(16384, 4 * 50304, most), 8192);
  EXPECT_EQ(logits_rows(65536, 4 * 50304, most), 9363);
}

// The head takes the tokens of a slice in parts whose logits fit, and trains the same, to rounding.
TEST_P(TrainerOnDevice, LogitsInPartsSaveMemory) {
  TrainOptions o = options("whole");
  o.step.B = 200, o.step.slices = 1;
  const auto whole = train(o);
  const auto logits = [&] {
    Context context(ContextOptions{}, device_);
    const TrainingStep step(context, o.step);
    return std::ranges::find(step.plan().blocks, "logits", &MemoryPlan::Block::name)->bytes;
  };
  const std::size_t before = logits();
  EXPECT_GT(before, std::size_t{2} << 20);
  o.step.logits_mib = 1;
  EXPECT_LE(logits(), std::size_t{1} << 20);
  o.out = root_ / "parts";
  const auto parts = train(o);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-4);
}

// Normalizations whose backward reads their output keep less and train the same, to the rounding of that
// output.
TEST_P(TrainerOnDevice, NormsFromTheirOutputSaveMemory) {
  TrainOptions o = options("from_input");
  const auto from_input = train(o);
  Context context(ContextOptions{}, device_);
  StepOptions deep = o.step;
  deep.model = decoder(1, kChannels, 12);
  const std::size_t before = TrainingStep(context, deep).plan().total_bytes();
  deep.norms = o.step.norms = NormBackwardFrom::output;
  const MemoryPlan plan = TrainingStep(context, deep).plan();
  // Two tensors of (N, C) a layer, less the columns that are kept and what was their place's anyway.
  const std::size_t rows = static_cast<std::size_t>(deep.B * deep.T * kChannels) * size_of(deep.dtype);
  EXPECT_LT(plan.total_bytes() + 15 * rows, before);
  o.out = root_ / "from_output";
  const auto from_output = train(o);
  for (std::size_t i = 0; i < from_input.size(); ++i) EXPECT_NEAR(from_output[i], from_input[i], 1e-3);
  o.step.recompute = Recompute::norm;
  EXPECT_THROW(train(o), UsageError);
}

TEST_P(TrainerOnDevice, NonFiniteNamesTensorAndOperationBeforeTouchingWeights) {
  // A weight of the second block's feed-forward layer is infinite: its product is the first tensor that is
  // not finite.
  const TrainOptions o = options("nan");
  Context context(ContextOptions{}, device_);
  TrainingStep step(context, o.step);
  step.allocate();
  o.step.model->initialize(1, step.full_precision());
  EXPECT_EQ(step.first_non_finite(), std::nullopt);
  const Tensor& weight = step.tensors().parameters.at("h.1.mlp.c_fc.weight");
  write_on_host(weight.view({weight.elements()}).slice(0, 5, 1), context.stream(), [](const Tensor& element) {
    element.as<float>()[0] = std::numeric_limits<float>::infinity();
  });
  const auto culprit = step.first_non_finite();
  ASSERT_TRUE(culprit.has_value());
  EXPECT_NE(culprit->find("h.1.fc"), std::string::npos) << *culprit;
  EXPECT_NE(culprit->find("matmul.forward"), std::string::npos) << *culprit;
}

// The second block adds nothing in the forward, whose values stay small, and its weights make the gradient of
// its activations overflow.
TEST_P(TrainerOnDevice, NonFiniteNamesATensorOfTheBackward) {
  const TrainOptions o = options("nan");
  Context context(ContextOptions{}, device_);
  TrainingStep step(context, o.step);
  step.allocate();
  const DecoderParameters& p = step.tensors().parameters;
  o.step.model->initialize(1, step.full_precision());
  const auto fill = [&](const char* name, float value) {
    write_on_host(p.at(name), context.stream(), [&](const Tensor& host) {
      std::fill_n(host.as<float>(), static_cast<std::size_t>(host.elements()), value);
    });
  };
  fill("h.1.mlp.c_fc.weight", 0);
  fill("h.1.mlp.c_fc.bias", 0);
  fill("h.1.mlp.c_proj.weight", 3e38f);
  fill("h.1.mlp.c_proj.bias", 0);
  fill("ln_f.weight", 1e15f);
  const TrainingStep::HostBatch batch = step.host_batch();
  for (std::int32_t i = 0; i < batch.tokens.elements(); ++i) {
    batch.tokens.as<std::int32_t>()[i] = i % kVocab;
    batch.targets.as<std::int32_t>()[i] = (i + 3) % kVocab;
  }
  const auto culprit = step.first_non_finite();
  ASSERT_TRUE(culprit.has_value());
  EXPECT_NE(culprit->find("h.1.dfc"), std::string::npos) << *culprit;
  EXPECT_NE(culprit->find("matmul.dx"), std::string::npos) << *culprit;
}

// A logit of −inf at a target: the loss is infinite and every gradient finite. It is that of the step's first
// slice, whose losses the second one overwrites.
TEST_P(TrainerOnDevice, AnInfiniteLossBesideFiniteGradientsNeverReachesTheWeights) {
  constexpr std::int32_t kBad = 7, kGood = 3;
  for (const bool halt : {true, false}) {
    StepOptions o = options("none").step;
    o.slices = 2;
    o.halt_on_non_finite = halt;
    Context context(ContextOptions{}, device_);
    TrainingStep step(context, o);
    step.allocate();
    const DecoderParameters& p = step.tensors().parameters;
    const Tensor &wte = p.at("wte.weight"), &bias = p.at("ln_f.bias");
    o.model->initialize(1, writer_to(p));
    const auto fill = [&](const Tensor& t, float value) {
      write_on_host(t, context.stream(), [&](const Tensor& host) {
        std::fill_n(host.as<float>(), static_cast<std::size_t>(host.elements()), value);
      });
    };
    fill(p.at("ln_f.weight"), 0);
    fill(bias, 1e20f);
    fill(wte.select(0, kBad), -1e19f);
    const auto weights = [&] {
      const auto bytes = [](const HostView& v) {
        return std::string(static_cast<const char*>(v.tensor().data), v.tensor().bytes());
      };
      return bytes(downloaded(wte, context.stream())) + bytes(downloaded(bias, context.stream()));
    };
    const auto run = [&](std::int64_t index, std::int32_t first_target) {
      step.begin();
      for (const std::int32_t target : {first_target, kGood}) {
        const TrainingStep::HostBatch batch = step.host_batch();
        const auto tokens = static_cast<std::size_t>(o.B * o.T);
        std::fill_n(batch.tokens.as<std::int32_t>(), tokens, kGood);
        std::fill_n(batch.targets.as<std::int32_t>(), tokens, target);
        step.forward_backward();
      }
      step.gradient_norm();
      step.update(1e-3, index);
      return step.collect();
    };
    const std::string before = weights();
    const TrainingStep::Result bad = run(1, kBad);
    EXPECT_TRUE(std::isinf(bad.loss_sum)) << bad.loss_sum;
    EXPECT_TRUE(std::isfinite(bad.norm)) << bad.norm;
    EXPECT_TRUE(weights() == before);
    const TrainingStep::Result good = run(2, kGood);
    EXPECT_TRUE(std::isfinite(good.loss_sum) && std::isfinite(good.norm));
    EXPECT_EQ(weights() == before, halt);
  }
}

TEST_P(TrainerOnDevice, NonFiniteStopsOrSkips) {
  TrainOptions o = options("start");
  o.schedule.steps = 2;
  train(o);
  // Poison the finished model and train from it.
  const fs::path model = root_ / "start" / "model";
  std::string bytes = read_file(model / "model.safetensors", 1 << 26);
  const std::uint32_t nan = 0x7fc00000u;
  std::memcpy(bytes.data() + bytes.size() - 4, &nan, 4);
  write_file_atomically(model / "model.safetensors", bytes);
  TrainOptions poisoned = options("poisoned");
  poisoned.initial_model = model;
  try {
    train(poisoned);
    FAIL() << "trained on NaN";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("final_norm"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("step 1"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(poisoned.out));  // no step was done
  poisoned.out = root_ / "skipping";
  poisoned.on_non_finite = OnNonFinite::skip;
  train(poisoned);
  EXPECT_EQ(skipped_, "not finite");
  EXPECT_EQ(weights("skipping"), bytes);
}

TEST_P(TrainerOnDevice, NonFiniteKeepsTheStepsBeforeIt) {
  TrainOptions o = options("wild");
  o.schedule.peak = 1e30;
  o.checkpoint_every = 0;
  EXPECT_THROW(train(o), Error);
  const auto saved = list_checkpoints(o.out);
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_GE(saved[0].step, 1);
  o.resume = true;
  o.on_non_finite = OnNonFinite::skip;
  train(o);
  EXPECT_TRUE(finished_);
}

TEST_F(TrainerTest, AFolderOfOtherFilesIsNoRun) {
  TrainOptions o = options("texts");
  fs::create_directories(o.out);
  write_file_atomically(o.out / "text.txt", "text");
  EXPECT_NE(message_of([&] { train(o); }).find("holds files, but not a run"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(o.out), {}), 1);
}

TEST_F(TrainerTest, AStopBeforeTheFirstStepWritesNothing) {
  const TrainOptions o = options("run");
  const std::atomic<bool> stop{true};
  {
    Context context(ContextOptions{}, device_);
    Trainer trainer(context, o, {});
    EXPECT_TRUE(fs::exists(o.out / "checkpoints"));
    EXPECT_FALSE(trainer.run(stop));
    EXPECT_FALSE(trainer.has_begun());
  }
  EXPECT_FALSE(fs::exists(o.out));
}

TEST_F(TrainerTest, RefusesRunsOfOthers) {
  TrainOptions o = options("run");
  o.checkpoint_every = 4;
  train(o);
  EXPECT_THROW(train(o), Error);  // holds a run already
  o.resume = true;
  TrainOptions other = o;
  other.seed = 99;
  EXPECT_THROW(train(other), Error);
  other = o;
  other.step.model = decoder(1, 64);
  EXPECT_THROW(train(other), Error);
  const FolderLock lock(o.out);
  EXPECT_THROW(train(o), Error);  // another process
}

TEST_F(TrainerTest, MastersAreOfTheWholeRun) {
  TrainOptions o = options("masters");
  o.step.dtype = DType::bf16;
  for (const bool masters : {true, false}) {
    o.step.master_weights = masters;
    o.out = root_ / fmt::format("masters{}", masters);
    o.resume = false;
    train(o, 5);
    o.resume = true;
    TrainOptions other = o;
    other.step.master_weights = !masters;
    try {
      train(other);
      FAIL() << "went on the other way";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--master-weights"), std::string::npos) << error.what();
    }
    // Checkpoints from before there was the choice say nothing of it.
    const fs::path state = list_checkpoints(o.out).back().folder / "trainer.json";
    nlohmann::json json = nlohmann::json::parse(read_file(state, 1 << 20));
    EXPECT_EQ(json["options"].erase("master_weights"), 1u);
    json.erase("checksum");
    json["version"] = 1;
    write_file_atomically(state, json.dump());
    if (masters) {
      train(o);
      EXPECT_TRUE(finished_);
    } else {
      EXPECT_THROW(train(o), Error);
    }
  }
}

TEST_F(TrainerTest, OneRankAddsUpAlongTheTreeEitherWay) {
  TrainOptions o = options("tree");
  o.step.slices = 6;
  const auto losses = train(o);
  o.step.reduce = Reduce::ring;
  o.out = root_ / "ring";
  EXPECT_EQ(train(o), losses);
  EXPECT_TRUE(weights("ring") == weights("tree"));
}

TEST_F(TrainerTest, ReduceIsOfTheWholeRun) {
  for (const Reduce reduce : kReduces) {
    TrainOptions o = options(std::string(name_of(reduce)));
    o.step.reduce = reduce;
    train(o, 5);
    o.resume = true;
    TrainOptions other = o;
    other.step.reduce = reduce == Reduce::tree ? Reduce::ring : Reduce::tree;
    const std::string error = message_of([&] { train(other); });
    for (const auto& part : {std::string("--reduce: "), fmt::format("with \"{}\"", name_of(reduce))})
      EXPECT_NE(error.find(part), std::string::npos) << error;
    // Checkpoints from before there was the choice say nothing of it: they are the tree's.
    const fs::path state = list_checkpoints(o.out).back().folder / "trainer.json";
    nlohmann::json json = nlohmann::json::parse(read_file(state, 1 << 20));
    EXPECT_EQ(json["options"].erase("reduce"), 1u);
    json.erase("checksum");
    json["version"] = 1;
    write_file_atomically(state, json.dump());
    if (reduce == Reduce::tree) {
      train(o);
      EXPECT_TRUE(finished_);
    } else {
      EXPECT_THROW(train(o), Error);
    }
  }
}

TEST_F(TrainerTest, WithoutMastersThePlanHasNone) {
  Context context{ContextOptions{}};
  StepOptions o = options("none").step;
  o.dtype = DType::bf16;
  const MemoryPlan with = TrainingStep(context, o).plan();
  o.master_weights = false;
  const MemoryPlan without = TrainingStep(context, o).plan();
  const auto masters = [](const MemoryPlan& plan) {
    return plan.arena_bytes[static_cast<int>(Category::master_weights)];
  };
  EXPECT_GT(masters(with), 0u);
  EXPECT_EQ(masters(without), 0u);
  EXPECT_EQ(without.total_bytes(), with.total_bytes() - masters(with) + kAlignment);  // for the random key
}

TEST_F(TrainerTest, ValidationShorterThanASampleIsRefusedBeforeTheStart) {
  TrainOptions o = options("short");
  o.val_every = 1;
  write_shards("val", 24);
  EXPECT_THROW(train(o), Error);
  EXPECT_FALSE(fs::exists(o.out / "metrics.jsonl"));
}

TEST_F(TrainerTest, KeepsTheNewestAndEveryMth) {
  TrainOptions o = options("keep");
  o.checkpoint_every = 1;
  o.keep = 2;
  o.keep_every = 5;
  train(o);
  std::vector<std::int64_t> steps;
  for (const Checkpoint& c : list_checkpoints(o.out)) steps.push_back(c.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 10, 11, 12}));
}

TEST_F(TrainerTest, DamagedCheckpointIsOneError) {
  TrainOptions o = options("damaged");
  train(o, 5);
  o.resume = true;
  const fs::path checkpoint = list_checkpoints(o.out).back().folder;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json", "trainer.json"}) {
    const std::string good = read_file(checkpoint / name, 1 << 26);
    std::string bad = good;
    bad[bad.size() / 2] ^= 1;
    write_file_atomically(checkpoint / name, bad);
    EXPECT_THROW(train(o), Error) << name;
    write_file_atomically(checkpoint / name, good.substr(0, good.size() / 2));
    EXPECT_THROW(train(o), Error) << name << " truncated";
    fs::remove(checkpoint / name);
    EXPECT_THROW(train(o), Error) << name << " missing";
    write_file_atomically(checkpoint / name, good);
  }
  train(o);
  EXPECT_TRUE(finished_);
}

// Not only --resume: the model of a checkpoint is also read to evaluate it, to convert it and to train from
// it.
TEST_F(TrainerTest, AModelOfADamagedOrMixedCheckpointIsRefused) {
  TrainOptions o = options("damaged");
  o.checkpoint_every = 4;
  o.keep = 0;
  train(o, 8);
  const auto checkpoints = list_checkpoints(o.out);
  ASSERT_EQ(checkpoints.size(), 2u);
  const fs::path weights = checkpoints.back().folder / "model.safetensors";
  load_weights(weights.parent_path(), DType::f32);
  std::string damaged = read_file(weights, 1 << 26);
  damaged.back() ^= 1;
  const std::string of_another = read_file(checkpoints.front().folder / "model.safetensors", 1 << 26);
  TrainOptions from = options("from");
  from.initial_model = weights.parent_path();
  for (const std::string& content : {damaged, of_another}) {
    write_file_atomically(weights, content);
    EXPECT_THROW(load_weights(weights.parent_path(), DType::f32), Error);
    EXPECT_THROW(train(from), Error);
  }
  fs::remove(weights.parent_path() / "trainer.json");  // the change was on purpose
  load_weights(weights.parent_path(), DType::f32);
}

// The data has no data.json. The first run begins without a model, the second with the first one's, which
// then names tokens of its own.
TEST_F(TrainerTest, WithoutAManifestAModelKeepsItsEndOfText) {
  const std::string line = "no model or tokenizer names an end-of-text token";
  TrainOptions o = options("first");
  o.schedule.steps = 2;
  train(o);
  EXPECT_NE(notices_.find(line), std::string::npos) << notices_;
  const fs::path file = o.out / "model" / "config.json";
  nlohmann::json config = nlohmann::json::parse(read_file(file, 1 << 20));
  EXPECT_TRUE(config.at("eos_token_id").is_null());
  config["bos_token_id"] = 5;
  config["eos_token_id"] = {6, 7};
  write_file_atomically(file, config.dump());
  notices_.clear();
  o.initial_model = o.out / "model";
  o.out = root_ / "second";
  train(o);
  EXPECT_EQ(notices_.find(line), std::string::npos) << notices_;
  const auto checkpoint = list_checkpoints(o.out).back().folder;
  for (const fs::path& folder : {o.out / "model", checkpoint}) {
    EXPECT_EQ(read_boundary_tokens(folder).bos, 5);
    EXPECT_EQ(read_boundary_tokens(folder).eos, (std::vector<std::int64_t>{6, 7}));
  }
  config["eos_token_id"] = kVocab;
  write_file_atomically(file, config.dump());
  o.out = root_ / "third";
  EXPECT_THROW(train(o), Error);
}

// The data's folder has none, and the checkpoint keeps it for the run that goes on.
TEST_F(TrainerTest, AModelKeepsTheChatTemplateOfTheOneItBeganWith) {
  TrainOptions o = options("first");
  o.schedule.steps = 4;
  train(o);
  const fs::path model = o.out / "model";
  EXPECT_FALSE(fs::exists(model / "chat_template.jinja"));
  const auto template_after = [&](const char* run, const char* file, const std::string& content) {
    TrainOptions tuned = options(run);
    tuned.schedule.steps = 4;
    tuned.initial_model = model;
    write_file_atomically(model / file, content);
    train(tuned, 2);
    fs::remove(model / file);
    tuned.initial_model.clear();
    tuned.resume = true;
    train(tuned);
    const fs::path kept = "chat_template.jinja";
    const std::string text = read_file(tuned.out / "model" / kept, 1 << 20);
    EXPECT_EQ(read_file(list_checkpoints(tuned.out).back().folder / kept, 1 << 20), text);
    return text;
  };
  EXPECT_EQ(template_after("a", "chat_template.jinja", "{{ a }}\n"), "{{ a }}\n");
  EXPECT_EQ(template_after("b", "tokenizer_config.json", R"({"chat_template": "{{ b }}"})"), "{{ b }}");
  write_file_atomically(root_ / "data" / "chat_template.jinja", "{{ data }}");
  EXPECT_EQ(template_after("c", "chat_template.jinja", "{{ c }}"), "{{ data }}");
}

TEST_F(TrainerTest, ACheckpointUnderTheNameOfAnotherStepIsRefused) {
  TrainOptions o = options("renamed");
  train(o, 5);
  o.resume = true;
  const fs::path checkpoint = list_checkpoints(o.out).back().folder;
  fs::rename(checkpoint, checkpoint.parent_path() / "step_00000007");
  EXPECT_THROW(train(o), Error);
}

TEST_F(TrainerTest, WhatACrashLeftHalfDeletedIsInNobodysWay) {
  TrainOptions o = options("deleted");
  o.checkpoint_every = 1;
  o.keep = 1;
  const fs::path folder = o.out / "checkpoints";
  const fs::path left = partial_path(folder / "step_00000001", "deleted"), mine = folder / "notes.deleted";
  fs::create_directories(left / "old" / "step_00000001");
  fs::create_directories(mine);
  train(o);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(mine));
  EXPECT_TRUE(finished_);
}

TEST_F(TrainerTest, ACheckpointThatCannotBeDeletedIsAWarning) {
  const fs::path folder = root_ / "prune" / "checkpoints";
  for (const char* name : {"step_00000001", "step_00000002", "step_00000003"}) {
    fs::create_directories(folder / name);
  }
  EXPECT_EQ(run_in_child([&] {
              std::string warnings;
              if (!fail_system_call(SYS_rename, EACCES)) return 2;
              for (const std::string& line : prune_checkpoints(root_ / "prune", 1, 0, {})) warnings += line;
              const bool both = warnings.find("step_00000001: cannot delete") != std::string::npos &&
                                warnings.find("step_00000002: cannot delete") != std::string::npos;
              return both ? 0 : 1;
            }),
            0);
  EXPECT_EQ(list_checkpoints(root_ / "prune").size(), 3u);
  prune_checkpoints(root_ / "prune", 1, 0, {});
  EXPECT_EQ(list_checkpoints(root_ / "prune").size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(TrainerTest, FoldersNamedAlmostLikeCheckpointsAreLeftAlone) {
  const fs::path folder = root_ / "copies" / "checkpoints";
  for (const char* name : {"step_00000001", "step_00000002", "step_1", "step_-0000001", "step_000000001"}) {
    fs::create_directories(folder / name);
  }
  EXPECT_EQ(list_checkpoints(root_ / "copies").size(), 2u);
  prune_checkpoints(root_ / "copies", 1, 0, {});
  EXPECT_FALSE(fs::exists(folder / "step_00000001"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 4);
}

TEST_F(TrainerTest, AFolderOfTheUsersInTheModelsPlaceIsFoundBeforeTraining) {
  const TrainOptions o = options("kept");
  fs::create_directories(o.out / "model");
  write_file_atomically(o.out / "model" / "notes", "mine");
  EXPECT_THROW(train(o), Error);
  EXPECT_EQ(read_file(o.out / "model" / "notes", 100), "mine");
}

TEST_F(TrainerTest, ImpossibleOptionsAreUsageErrors) {
  const auto refuses = [&](auto change) {
    TrainOptions o = options("never");
    change(o);
    EXPECT_THROW(train(o), UsageError);
    EXPECT_FALSE(fs::exists(root_ / "never"));
  };
  refuses([](TrainOptions& o) { o.step.model = decoder(3, kChannels); });
  refuses([](TrainOptions& o) { o.step.T = 25; });
  refuses([](TrainOptions& o) { o.step.B = 0; });
  refuses([](TrainOptions& o) { o.schedule.steps = 0; });
  refuses([](TrainOptions& o) { o.step.beta2 = 1; });
  refuses([](TrainOptions& o) { o.step.dtype = DType::f16; });
  refuses([](TrainOptions& o) { o.step.master_weights = false; });  // with fp32
}

TEST_F(TrainerTest, PlanIsWhatIsTaken) {
  Context context{ContextOptions{}};
  TrainingStep step(context, options("plan").step);
  step.allocate();
  EXPECT_EQ(step.allocated_bytes() + context.scratch_bytes(), step.plan().total_bytes());
  step.begin();
  for (int slice = 0; slice < 4; ++slice) {
    EXPECT_THROW(step.gradient_norm(), Error);
    step.forward_backward();
  }
  EXPECT_THROW(step.forward_backward(), Error);
  step.gradient_norm();
  EXPECT_THROW(step.update(1e-3, 0), Error);
  step.update(1e-3, 1);
  EXPECT_EQ(step.allocated_bytes() + context.scratch_bytes(), step.plan().total_bytes());  // nothing grew
}

TEST_F(TrainerTest, SamplesAreInWhatIsPlanned) {
  Context context{ContextOptions{}};
  TrainOptions o = options("samples");
  const std::size_t step = Trainer(context, o, {}).memory().total();
  o.sample_every = 1;
  Trainer trainer(context, o, {});
  const std::size_t before = trainer.memory().total();
  HeapAllocator heap;
  const DecodingEngine generator(
      context,
      {.decoder = o.step.model,
       .dtype = o.step.dtype,
       .parameters = o.step.model->allocate_parameters(o.step.dtype, Category::parameters, "", heap),
       .memory = {}},
      sampling_engine(o));
  const std::size_t shared = std::min(trainer.plan().workspace_bytes, generator.plan().workspace_bytes);
  EXPECT_EQ(before, step + generator.plan().total_bytes() - shared);
  EXPECT_GT(before, step);
}

}  // namespace
}  // namespace warpwright
