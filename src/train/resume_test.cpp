// Runs that are stopped, damaged, finished or given other data, and what resuming them does.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "infer/score.hpp"
#include "model/decoder_files.hpp"
#include "model/safetensors.hpp"
#include "ops/adamw/master.hpp"
#include "runtime/test_folder.hpp"
#include "train/optimizer_shard.hpp"
#include "train/trainer_fixture.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public TrainerTest {
 protected:
  // Every file below a folder of the run.
  std::map<std::string, std::string> files(const fs::path& folder) const {
    std::map<std::string, std::string> result;
    for (const auto& entry : fs::recursive_directory_iterator(root_ / folder)) {
      if (entry.is_regular_file()) result[entry.path().string()] = read_file(entry.path(), 1 << 26);
    }
    return result;
  }

  // The lines of metrics.jsonl without what a clock decides.
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
      lines.back().erase("ms");
      lines.back().erase("tokens_per_second");
    }
    return lines;
  }

  std::string error_of(const TrainOptions& o) {
    return message_of([&] { train(o); });
  }

  void damage(const fs::path& path) const {
    std::string bytes = read_file(path, 1 << 26);
    bytes[bytes.size() / 2] ^= 1;
    write_file_atomically(path, bytes);
  }

  std::vector<std::int64_t> steps(const TrainOptions& o) const {
    std::vector<std::int64_t> list;
    for (const Checkpoint& c : list_checkpoints(o.out)) list.push_back(c.step);
    return list;
  }
};

// A limit of this process, for a while.
class SoftLimit {
 public:
  SoftLimit(__rlimit_resource resource, rlim_t bytes) : resource_(resource) {
    ::getrlimit(resource, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(resource, &limit);
  }
  SoftLimit(const SoftLimit&) = delete;
  ~SoftLimit() { ::setrlimit(resource_, &before_); }

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

// Each run is stopped once, a few operations later than the one before: within slices, between them,
// in validation and in samples.
TEST_F(ResumeTest, ARunStoppedAfterAnyOperationEndsWithTheSameBits) {
  TrainOptions whole = options("whole");
  whole.schedule.steps = 4;
  whole.val_every = 2;
  whole.sample_every = 4;
  whole.sample_tokens = 3;
  stop_after_operations_ = std::int64_t{1} << 40;
  train(whole);
  const std::int64_t operations = operations_;
  const double val_loss = val_loss_;
  const auto sample = sample_;
  const auto lines = metrics("whole");
  ASSERT_EQ(lines.size(), 4u);
  constexpr std::int64_t kRuns = 40;
  for (std::int64_t i = 0; i < kRuns; ++i) {
    TrainOptions parts = whole;
    parts.out = root_ / fmt::format("parts{}", i);
    stop_after_operations_ = 1 + i * operations / kRuns;
    train(parts);
    EXPECT_FALSE(finished_) << i;
    EXPECT_EQ(operations_, stop_after_operations_) << "an operation ran after the stop";
    EXPECT_TRUE(fs::exists(parts.out / "model" / "model.safetensors"));
    EXPECT_EQ(list_checkpoints(parts.out).size(), 1u);
    stop_after_operations_ = 0;
    parts.resume = true;
    val_loss_ = 0;
    sample_.clear();
    train(parts);
    EXPECT_TRUE(finished_);
    EXPECT_EQ(weights(parts.out.filename()), weights("whole")) << i;
    EXPECT_EQ(metrics(parts.out.filename()), lines) << i;
    EXPECT_EQ(val_loss_, val_loss) << i;
    EXPECT_EQ(sample_, sample) << i;
    fs::remove_all(parts.out);
  }
}

TEST_F(ResumeTest, ARunOfMuonEndsWithTheSameBits) {
  for (const bool masters : {true, false}) {
    TrainOptions whole = options(fmt::format("whole{}", masters));
    whole.step.optimizer = Optimizer::muon;
    whole.step.dtype = DType::bf16;
    whole.step.master_weights = masters;
    train(whole);
    TrainOptions parts = whole;
    parts.out = root_ / fmt::format("parts{}", masters);
    train(parts, 5);
    EXPECT_FALSE(finished_);
    parts.resume = true;
    train(parts, -1, 3);
    EXPECT_EQ(weights(parts.out.filename()), weights(whole.out.filename()));
  }
}

// The optimizer's tensors of a checkpoint, by name.
using OptimizerTensors = std::map<std::string, std::pair<TensorInfo, std::vector<std::byte>>>;

OptimizerTensors optimizer_of(const fs::path& checkpoint) {
  OptimizerTensors tensors;
  const SafetensorsFile file(checkpoint / "optimizer.safetensors");
  for (const SafetensorsEntry& e : file.entries()) {
    const auto bytes = file.bytes(e);
    tensors[e.name] = {{e.name, e.dtype.value(), e.shape}, {bytes.begin(), bytes.end()}};
  }
  return tensors;
}

// With the checksums of a checkpoint, but of version 1, which has none of trainer.json itself.
void replace_optimizer(const fs::path& checkpoint, const OptimizerTensors& tensors) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back(tensor.first);
  std::ranges::stable_sort(infos, std::greater<>(), [](const TensorInfo& i) { return size_of(i.dtype); });
  TensorFileWriter writer = write_safetensors(path, infos);
  for (const TensorInfo& info : infos) writer.write(info.name, tensors.at(info.name).second);
  writer.commit();
  nlohmann::json json = nlohmann::json::parse(read_file(checkpoint / "trainer.json", 1 << 20));
  json.erase("checksum");
  json["version"] = 1;
  json["checksums"]["optimizer.safetensors"] = checksum_of(path);
  write_file_atomically(checkpoint / "trainer.json", json.dump());
}

// As versions before 5 wrote them: whole masters instead of remainders.
OptimizerTensors with_masters(const fs::path& checkpoint) {
  const DecoderWeights model = load_weights(checkpoint, DType::bf16);
  OptimizerTensors old;
  for (const auto& [name, tensor] : optimizer_of(checkpoint)) {
    if (!name.starts_with(kRemainderPrefix)) {
      old[name] = tensor;
      continue;
    }
    const std::string parameter = name.substr(kRemainderPrefix.size()), master = "master." + parameter;
    const bf16* upper = model.parameters.at(parameter).as<bf16>();
    const auto* rest = reinterpret_cast<const std::int16_t*>(tensor.second.data());
    std::vector<float> whole(tensor.second.size() / sizeof *rest);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      whole[i] = ops::adamw_kernels::master_of(upper[i].bits, rest[i]);
    }
    const auto bytes = std::as_bytes(std::span(whole));
    old[master] = {{master, DType::f32, tensor.first.shape}, {bytes.begin(), bytes.end()}};
  }
  return old;
}

TEST_F(ResumeTest, ACheckpointWithWholeMastersGoesOnWithTheSameBits) {
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
    TrainOptions whole = options(fmt::format("whole{}", static_cast<int>(optimizer)));
    whole.step.dtype = DType::bf16;
    whole.step.optimizer = optimizer;
    train(whole);
    TrainOptions parts = whole;
    parts.out = root_ / fmt::format("parts{}", static_cast<int>(optimizer));
    train(parts, 5);
    const fs::path checkpoint = list_checkpoints(parts.out).back().folder;
    replace_optimizer(checkpoint, with_masters(checkpoint));
    parts.resume = true;
    train(parts);
    EXPECT_TRUE(finished_);
    EXPECT_EQ(weights(parts.out.filename()), weights(whole.out.filename()));
  }
}

TEST_F(ResumeTest, MastersAndRemaindersThatDoNotFitAreRefused) {
  TrainOptions o = options("run");
  o.step.dtype = DType::bf16;
  train(o, 5);
  o.resume = true;
  const fs::path checkpoint = list_checkpoints(o.out).back().folder;
  const OptimizerTensors now = optimizer_of(checkpoint), old = with_masters(checkpoint);
  const std::string master = "master.wpe.weight", remainder = "remainder.wpe.weight";
  const auto refused = [&](const OptimizerTensors& tensors) {
    replace_optimizer(checkpoint, tensors);
    return error_of(o);
  };
  OptimizerTensors wrong = now;
  wrong.erase(remainder);
  EXPECT_NE(refused(wrong).find("has no row 0 of " + remainder), std::string::npos);
  wrong = now;
  wrong[master] = old.at(master);
  EXPECT_NE(refused(wrong).find("has both " + master + " and " + remainder), std::string::npos);
  wrong = old;
  const float first = 7, last = 8;  // the first is named, whichever thread finds one before
  auto& bytes = wrong[master].second;
  std::memcpy(bytes.data(), &first, sizeof first);
  std::memcpy(bytes.data() + bytes.size() - sizeof last, &last, sizeof last);
  EXPECT_NE(refused(wrong).find(master + " is not its weight in full precision: 7 for "), std::string::npos);
  wrong = now;
  wrong[remainder].first.dtype = DType::bf16;
  EXPECT_NE(refused(wrong).find(remainder + " is BF16"), std::string::npos);
}

TEST_F(ResumeTest, AFinishedRunKeepsItsLastCheckpointAndChangesNothing) {
  TrainOptions o = options("run");
  o.checkpoint_minutes = 0;
  train(o);
  EXPECT_EQ(steps(o), std::vector<std::int64_t>{12});
  o.resume = true;
  auto before = files("run");
  train(o);
  EXPECT_TRUE(finished_);
  before.erase((o.out / "lock").string());
  auto after = files("run");
  after.erase((o.out / "lock").string());
  EXPECT_EQ(after, before);
}

TEST_F(ResumeTest, MoreStepsGoOnFromTheLastCheckpoint) {
  TrainOptions whole = options("whole");
  whole.schedule = {LearningRateSchedule::Kind::constant, 1e-2, 0, 12};
  train(whole);
  TrainOptions parts = whole;
  parts.out = root_ / "parts";
  parts.schedule.steps = 7;
  train(parts);
  parts.resume = true;
  parts.schedule.steps = 12;
  train(parts);
  EXPECT_NE(notices_.find("steps changes from 7 to 12"), std::string::npos) << notices_;
  EXPECT_EQ(weights("parts"), weights("whole"));
  parts.schedule.steps = 11;
  EXPECT_THROW(train(parts), UsageError);
}

// The GPU writes the model that it has read again, to the bit, and goes on as the CPU would have, but for
// rounding.
TEST_F(ResumeTest, OnCudaARunGoesOnThatACpuBeganAndBack) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  TrainOptions whole = options("whole");
  whole.schedule = {LearningRateSchedule::Kind::constant, 1e-2, 0, 12};
  const std::vector<double> expected = train(whole);
  TrainOptions parts = whole;
  parts.out = root_ / "parts";
  parts.schedule.steps = 5;
  train(parts);
  const std::string of_cpu = weights("parts");
  fs::remove_all(parts.out / "model");
  parts.resume = true;
  device_ = {DeviceKind::cuda, 0};
  EXPECT_TRUE(train(parts).empty());
  EXPECT_EQ(weights("parts"), of_cpu);
  std::vector<double> losses;
  for (const auto& [kind, steps] : {std::pair(DeviceKind::cuda, 9), std::pair(DeviceKind::cpu, 12)}) {
    device_ = {kind, 0};
    parts.schedule.steps = steps;
    const std::vector<double> more = train(parts);
    losses.insert(losses.end(), more.begin(), more.end());
  }
  ASSERT_EQ(losses.size(), 7u);
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[5 + i], 1e-3) << "step " << 6 + i;
}

// Killed after the last checkpoint and before RUN/model, or while RUN/model is that of an earlier stop.
TEST_F(ResumeTest, AModelThatIsNotOfTheLastStepIsWrittenAgain) {
  TrainOptions o = options("run");
  train(o);
  const std::string last = weights("run");
  const fs::path model = o.out / "model";
  o.resume = true;
  fs::remove_all(model);
  train(o);
  EXPECT_EQ(weights("run"), last);
  nlohmann::json origin = nlohmann::json::parse(read_file(model / "warpwright.json", 1 << 20));
  origin["step"] = 5;
  write_file_atomically(model / "warpwright.json", origin.dump());
  write_file_atomically(model / "model.safetensors", "that of step 5");
  train(o);
  EXPECT_EQ(weights("run"), last);
}

TEST_F(ResumeTest, ADamagedCheckpointFallsBackToTheOneBefore) {
  TrainOptions whole = options("whole");
  train(whole);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json", "trainer.json"}) {
    TrainOptions o = options(fmt::format("run_{}", name));
    o.checkpoint_every = 3;
    o.keep = 1;
    train(o, 10);
    ASSERT_EQ(steps(o), std::vector<std::int64_t>{10});
    o.keep = 2;
    o.resume = true;
    train(o, 11);
    ASSERT_EQ(steps(o), (std::vector<std::int64_t>{10, 11}));
    damage(list_checkpoints(o.out).back().folder / name);
    notices_.clear();
    o.keep = 1;
    const auto rest = train(o);
    EXPECT_EQ(rest.size(), 2u) << "from step 10";
    EXPECT_NE(notices_.find("step_00000011 is damaged"), std::string::npos) << notices_;
    EXPECT_EQ(weights(o.out.filename()), weights("whole"));
    // Nothing whole is left: an error, and no run from step 0.
    for (const Checkpoint& c : list_checkpoints(o.out)) fs::remove(c.folder / name);
    fs::remove_all(o.out / "model");
    const std::string error = error_of(o);
    EXPECT_NE(error.find("checkpoints: holds no intact checkpoint: "), std::string::npos) << error;
    EXPECT_NE(error.find(name), std::string::npos) << error;
  }
}

// A run that has not reached the step of the damaged checkpoint neither counts nor deletes it.
TEST_F(ResumeTest, ADamagedCheckpointDoesNotPushOutWholeOnes) {
  TrainOptions o = options("run");
  o.checkpoint_every = 4;
  train(o, 8);
  ASSERT_EQ(steps(o), (std::vector<std::int64_t>{4, 8}));
  damage(o.out / "checkpoints" / "step_00000008" / "trainer.json");
  o.resume = true;
  o.keep = 1;
  train(o, 6);
  EXPECT_EQ(steps(o), (std::vector<std::int64_t>{6, 8}));
  train(o);
  EXPECT_TRUE(finished_);
}

TEST_F(ResumeTest, AFieldThatIsMissingIsNamed) {
  TrainOptions o = options("run");
  train(o, 4);
  const fs::path checkpoint = list_checkpoints(o.out).back().folder;
  nlohmann::json whole = nlohmann::json::parse(read_file(checkpoint / "trainer.json", 1 << 20));
  whole.erase("checksum");
  whole["version"] = 1;
  for (const char* field : {"step", "options", "plan_hash", "loss_window", "norm_window", "checksums"}) {
    for (const bool erased : {true, false}) {
      nlohmann::json json = whole;
      json[field] = "g";
      if (erased) json.erase(field);
      write_file_atomically(checkpoint / "trainer.json", json.dump());
      const std::string error = message_of([&] { read_trainer_state(checkpoint); });
      EXPECT_NE(error.find(fmt::format("\"{}\" is missing", field)), std::string::npos) << error;
    }
  }
  for (const char* field : {"settings", "origin", "ranks"}) {
    nlohmann::json json = whole;
    json[field] = "g";
    write_file_atomically(checkpoint / "trainer.json", json.dump());
    const std::string error = message_of([&] { read_trainer_state(checkpoint); });
    EXPECT_NE(error.find(fmt::format("\"{}\" is missing", field)), std::string::npos) << error;
  }
}

// A link to itself fails in the same way as a lack of permission or of descriptors, and for root, too.
TEST_F(ResumeTest, AnErrorOfTheSystemIsNotDamage) {
  for (const std::string name : {"model.safetensors", "trainer.json"}) {
    TrainOptions o = options("run_" + name);
    o.checkpoint_every = 4;
    train(o, 8);
    const fs::path file = o.out / "checkpoints" / "step_00000008" / name;
    fs::remove(file);
    fs::create_symlink(name, file);  // a link to itself
    o.resume = true;
    notices_.clear();
    EXPECT_EQ(error_of(o).find(file.string() + ": cannot open: Too many levels of symbolic links"), 0u)
        << error_of(o);
    EXPECT_EQ(notices_.find("damaged"), std::string::npos) << notices_;
    EXPECT_EQ(steps(o), (std::vector<std::int64_t>{4, 8}));
  }
}

TEST_F(ResumeTest, WhatTakesTheNameOfALaterCheckpointIsRefusedAtTheStart) {
  TrainOptions o = options("run");
  o.checkpoint_every = 4;
  train(o, 8);
  o.resume = true;
  const fs::path file = o.out / "checkpoints" / "step_00000012",
                 later = o.out / "checkpoints" / "step_00000013";
  write_file_atomically(file, "x");
  EXPECT_EQ(error_of(o).find(file.string() + ": is not a folder"), 0u) << error_of(o);
  fs::rename(file, later);  // after the last step
  const fs::path damaged = o.out / "checkpoints" / "step_00000008", inside = damaged / "trainer.json";
  fs::remove(inside);
  fs::create_directory(inside);
  EXPECT_EQ(error_of(o).find(damaged.string() + ": holds trainer.json, which is not a file of a checkpoint"),
            0u)
      << error_of(o);
  fs::remove(inside);
  EXPECT_EQ(error_of(o), "no error");
  EXPECT_TRUE(fs::is_regular_file(later));
}

TEST_F(ResumeTest, WithoutACheckpointTheFirstCommandStartsOver) {
  TrainOptions o = options("run");
  train(o);
  TrainOptions killed = options("killed");
  fs::create_directories(killed.out / "checkpoints");
  write_file_atomically(killed.out / "metrics.jsonl", "{\"step\":1,\"loss\":1}\n{\"step\":2,");
  notices_.clear();
  train(killed);
  EXPECT_NE(notices_.find("ended before its first checkpoint: the run starts again"), std::string::npos)
      << notices_;
  EXPECT_EQ(metrics("killed"), metrics("run"));
  EXPECT_NE(error_of(killed).find("holds a run already"), std::string::npos);
}

TEST_F(ResumeTest, ANewerCheckpointIsNotDamaged) {
  TrainOptions o = options("run");
  o.checkpoint_every = 4;
  train(o, 8);
  const fs::path state = o.out / "checkpoints" / "step_00000008" / "trainer.json";
  nlohmann::json json = nlohmann::json::parse(read_file(state, 1 << 20));
  json["version"] = 6;
  write_file_atomically(state, json.dump());
  o.resume = true;
  const std::string expected = state.string() +
                               ": was written by a newer warpwright (version 6; this one reads up to 5); "
                               "resume with that build, or train into another folder";
  EXPECT_EQ(error_of(o), expected);
  EXPECT_EQ(message_of([&] { newest_readable(o.out); }), expected);
  EXPECT_EQ(steps(o), (std::vector<std::int64_t>{4, 8}));
}

// A checkpoint of version 3, which knew nothing of ranks.
TEST_F(ResumeTest, AnOldCheckpointIsReadWhole) {
  const fs::path run = fs::path(WARPWRIGHT_TESTDATA) / "run_of_version_3";
  const auto saved = newest_whole(run, {}, single_rank());
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->state.step, 2);
  EXPECT_EQ(saved->state.options.at("lr"), 3e-4);
  Context context{ContextOptions{}};
  TrainingStep step(context, {.model = read_decoder(saved->checkpoint), .B = 1, .T = 8, .slices = 2});
  step.allocate();
  load_checkpoint(saved->checkpoint, step, context.stream());
  HeapAllocator heap;
  const Checksums written =
      write_part(root_, step.state_part(heap), 0, 1, *read_decoder(saved->checkpoint), context.stream());
  EXPECT_EQ(written.size(), 2u);
  for (const auto& [name, checksum] : written)
    EXPECT_EQ(checksum, checksum_of(saved->checkpoint / name)) << name;
}

// The steps go on while the copy is written, and wait if there is no memory for one.
TEST_F(ResumeTest, WithoutMemoryForACopyTrainingWaits) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  TrainOptions o = options("run");
  o.step.model = decoder(2, 512);
  o.schedule.steps = 3;
  o.checkpoint_every = 1;
  o.keep = 0;
  const std::string line = "no memory for a copy of the state";
  train(o);
  EXPECT_EQ(notices_.find(line), std::string::npos);
  EXPECT_EQ(steps(o), (std::vector<std::int64_t>{1, 2, 3}));
  o.out = root_ / "waits";
  std::optional<SoftLimit> limit;
  after_step_ = [&] {
    constexpr rlim_t kRest = 32 << 20;  // the copy takes 77 MiB
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    if (!limit) limit.emplace(RLIMIT_AS, pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kRest);
  };
  train(o);
  limit.reset();
  EXPECT_NE(notices_.find(line), std::string::npos);
  EXPECT_EQ(steps(o), (std::vector<std::int64_t>{1, 2, 3}));
  for (const char* step : {"step_00000001", "step_00000003"}) {
    const fs::path name = fs::path("checkpoints") / step / "optimizer.safetensors";
    EXPECT_EQ(checksum_of(root_ / "run" / name), checksum_of(root_ / "waits" / name));
  }
}

// An error of the writer ends the run, with the checkpoint before it in place.
TEST_F(ResumeTest, AnErrorOfTheWriterEndsTheRun) {
  TrainOptions o = options("run");
  o.checkpoint_every = 4;
  train(o, 5);
  ASSERT_EQ(steps(o), (std::vector<std::int64_t>{4, 5}));
  o.resume = true;
  const std::size_t largest =
      fs::file_size(o.out / "checkpoints" / "step_00000005" / "optimizer.safetensors");
  std::signal(SIGXFSZ, SIG_IGN);
  {
    const SoftLimit limit(RLIMIT_FSIZE, largest - 1);
    const std::string error = error_of(o);
    EXPECT_NE(error.find("optimizer.safetensors: cannot write: File too large"), std::string::npos) << error;
  }
  EXPECT_EQ(steps(o), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(files("run/checkpoints").size(), 10u) << "nothing of the third checkpoint is left";
}

TEST_F(ResumeTest, CheckpointsThatCannotBeListedAreAnError) {
  TrainOptions o = options("run");
  train(o, 5);
  o.resume = true;
  fs::rename(o.out / "checkpoints", o.out / "aside");
  fs::create_symlink("checkpoints", o.out / "checkpoints");  // a link to itself
  const std::string error = message_of([&] { list_checkpoints(o.out); });
  EXPECT_NE(error.find("cannot be examined"), std::string::npos) << error;
  EXPECT_NE(error_of(o), "no error");
  fs::remove(o.out / "checkpoints");
  write_file_atomically(o.out / "checkpoints", "a file");
  EXPECT_NE(message_of([&] { list_checkpoints(o.out); }).find("cannot be listed"), std::string::npos);
  EXPECT_NE(error_of(o), "no error");
  EXPECT_FALSE(fs::exists(root_ / "run" / "checkpoints" / "step_00000000"));
}

TEST_F(ResumeTest, ByTheClockEveryStepIsSavedIfTheClockSaysSo) {
  TrainOptions o = options("run");
  o.checkpoint_minutes = 1e-9;
  o.keep = 0;
  train(o);
  EXPECT_EQ(steps(o).size(), 13u);  // step 0 among them
  o.out = root_ / "none";
  o.checkpoint_minutes = 0;
  train(o);
  EXPECT_EQ(steps(o), std::vector<std::int64_t>{12});
}

TEST_F(ResumeTest, ChangedDataIsAnErrorThatNamesTheShard) {
  TrainOptions whole = options("whole");
  train(whole);
  TrainOptions o = options("run");
  train(o, 5);
  o.resume = true;
  const fs::path shard = root_ / "data" / "train_000001.bin";
  const std::string good = read_file(shard, 1 << 20);
  std::string bad = good;
  bad[bad.size() - 100] ^= 1;
  write_file_atomically(shard, bad);
  const std::string error = error_of(o);
  EXPECT_NE(error.find("train_000001.bin of the train split has other contents"), std::string::npos) << error;
  EXPECT_NE(error.find("--allow-data-change"), std::string::npos) << error;
  o.allow_data_change = true;
  train(o, 6);
  EXPECT_NE(notices_.find("train_000001.bin of the train split"), std::string::npos) << notices_;
  o.allow_data_change = false;
  train(o, 7);  // what was allowed is now the run's data
  write_file_atomically(shard, good);
  EXPECT_NE(error_of(o).find("train_000001.bin"), std::string::npos);
  // A shard that is there twice, and one that is not there.
  fs::copy(shard, root_ / "data" / "train_000009.bin");
  EXPECT_NE(error_of(o).find("the train split has 4 shards, it had 3"), std::string::npos) << error_of(o);
  fs::remove(root_ / "data" / "train_000009.bin");
  write_file_atomically(shard, bad);
  fs::remove(root_ / "data" / "val_000000.bin");
  EXPECT_NE(error_of(o).find("the val split has 0 shards, it had 1"), std::string::npos) << error_of(o);
}

TEST_F(ResumeTest, DataInAnotherFolderUnderOtherNamesIsTheSameData) {
  TrainOptions whole = options("whole");
  train(whole);
  TrainOptions o = options("run");
  train(o, 5);
  o.resume = true;
  fs::rename(root_ / "data", root_ / "moved");
  fs::rename(root_ / "moved" / "train_000000.bin", root_ / "moved" / "train_000000a.bin");
  o.data = root_ / "moved";
  train(o);
  EXPECT_NE(notices_.find("data changes from"), std::string::npos) << notices_;
  EXPECT_EQ(weights("run"), weights("whole"));
}

TEST_F(ResumeTest, OtherOptionsAreNamedByTheirFlags) {
  TrainOptions o = options("run");
  train(o, 5);
  o.resume = true;
  const auto refuses = [&](auto change, const std::string& flag, const std::string& words) {
    TrainOptions other = o;
    change(other);
    const std::string error = error_of(other);
    EXPECT_EQ(error.rfind(flag + ": ", 0), 0u) << error;
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  refuses([](TrainOptions& t) { t.seed = 99; }, "--seed", "with 1337 and cannot go on with 99");
  refuses([](TrainOptions& t) { t.step.T = 12; }, "--seq", "24");
  refuses([](TrainOptions& t) { t.step.model = decoder(1, 64); }, "--model", "n_embd 32");
  refuses([](TrainOptions& t) { t.step.slices = 2; }, "--total-batch", "192");
  refuses([](TrainOptions& t) { t.overfit = true; }, "--overfit", "false");
  refuses([](TrainOptions& t) { t.step.optimizer = Optimizer::muon; }, "--optimizer", "\"adamw\"");
}

TEST_F(ResumeTest, MetricsAreCutFromTheirEnd) {
  const fs::path path = root_ / "metrics.jsonl";
  const auto cut = [&](const std::string& content, std::int64_t steps) {
    write_file_atomically(path, content);
    Metrics metrics(path, steps);
    EXPECT_EQ(read_file(path, 1 << 26), content);  // until the first step is done
    metrics.write({{"step", "next"}});
    const std::string after = read_file(path, 1 << 26);
    const std::string next = "{\"step\":\"next\"}\n";
    EXPECT_TRUE(after.ends_with(next));
    return after.substr(0, after.size() - next.size());
  };
  const std::string one = "{\"step\":1}\n", two = "{\"step\":2}\n", three = "{\"step\":3}\n";
  EXPECT_EQ(cut("", 5), "");
  EXPECT_EQ(cut("\n", 5), "");
  EXPECT_EQ(cut("{\"st", 5), "");
  EXPECT_EQ(cut(std::string(100, '\0'), 5), "");
  EXPECT_THROW(cut("my results\n", 5), Error);
  EXPECT_EQ(cut(one + two + three, 2), one + two);
  EXPECT_EQ(cut(one + two + three, 0), "");
  EXPECT_EQ(cut(one + two + "{\"step\":3}", 3), one + two);
  EXPECT_EQ(cut(one + two + std::string(1 << 20, '[') + "\n" + std::string(1 << 20, '{'), 3), one + two);
  EXPECT_EQ(cut(one + "\n\n" + "[7]\n{\"step\":1e400}\n{\"step\":\"two\"}\n", 3), one);
}

// A file with a hole of 64 GiB: only its end may be read.
TEST_F(ResumeTest, MetricsAreNotReadWhole) {
  const fs::path path = root_ / "metrics.jsonl";
  write_file_atomically(path, "");
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 30;
  std::error_code error;
  fs::resize_file(path, kBytes, error);
  if (error) GTEST_SKIP() << "needs a file system with holes of 64 GiB";
  OutputFile::continued(path).close();
  {
    OutputFile file = OutputFile::continued(path);
    file.write("\n{\"step\":7}\n{\"step\":80}\n");
    file.close();
  }
  Metrics(path, 7).write({{"step", 8}});
  EXPECT_EQ(fs::file_size(path), kBytes + std::string("\n{\"step\":7}\n{\"step\":8}\n").size());
}

// The same model, data, sequence length and batch: also with a last batch that is not full.
TEST_F(ResumeTest, ValidationIsWhatEvalComputes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t B : {1, 3, 5, 64}) {
      TrainOptions o = options(fmt::format("run{}{}", name_of(dtype), B));
      o.step.dtype = dtype;
      o.step.B = B;
      o.step.slices = 1;
      o.schedule.steps = 3;
      o.val_every = 3;
      train(o);
      Context context{ContextOptions{}};
      const DecoderWeights model = load_weights(o.out / "model", dtype);
      const TokenStream stream(o.data, Split::val, kVocab);
      const LossReport report = evaluate_loss(context, model, stream, B, o.step.T, 0, {});
      EXPECT_EQ(report.tokens, (stream.tokens() - 1) / o.step.T * o.step.T);
      EXPECT_NEAR(report.loss, val_loss_, 1e-9 * val_loss_) << name_of(dtype) << " " << B;
    }
  }
}

TEST_F(ResumeTest, AModelOfAnotherOriginIsReadOrRefused) {
  TrainOptions o = options("run");
  train(o);
  const fs::path model = o.out / "model", file = model / "warpwright.json";
  const auto origin = read_origin(model);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->step, 12);
  EXPECT_EQ(origin->sequence, 24);
  EXPECT_FALSE(origin->tokenizer);
  EXPECT_EQ(origin->data, fingerprint_of_data(o.data));
  const std::string good = read_file(file, 1 << 20);
  for (const char* bad : {"", "[]", "{}", "7", "{\"format\":\"warpwright-model\",\"version\":9}",
                          "{\"format\":\"warpwright-model\",\"version\":1,\"step\":\"x\"}"}) {
    write_file_atomically(file, bad);
    EXPECT_NE(message_of([&] { read_origin(model); }).find("warpwright.json"), std::string::npos) << bad;
  }
  for (std::size_t end = 0; end + 2 < good.size(); end += 7) {
    write_file_atomically(file, good.substr(0, end));
    EXPECT_THROW(read_origin(model), Error) << end;
  }
  fs::remove(file);
  EXPECT_FALSE(read_origin(model));
}

}  // namespace
}  // namespace warpwright
