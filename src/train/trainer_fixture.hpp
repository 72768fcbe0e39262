// Shared by tests of training: a folder with shards that can be learned, and runs on it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/shard.hpp"
#include "model/gpt2_decoder.hpp"
#include "runtime/file.hpp"
#include "runtime/philox.hpp"
#include "train/trainer.hpp"

namespace warpwright {

// A folder with shards of a sequence that can be learned: most tokens are a function of the previous one.
class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest()
      : root_(std::filesystem::temp_directory_path() / fmt::format("warpwright_trainer_{}", getpid())) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "data");
    write_shards("train", 6000);
    write_shards("val", 400);
  }
  ~TrainerTest() override { std::filesystem::remove_all(root_); }

  void write_shards(const std::string& split, std::int64_t count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    const PhiloxStream stream(3, 4);
    for (std::size_t i = 1; i < ids.size(); ++i) {
      const bool follow = stream.uniform(i) < 0.8;
      ids[i] =
          follow ? (ids[i - 1] * 7 + 3) % kVocab : static_cast<std::int32_t>(stream.block(i)[3] % kVocab);
    }
    ShardWriter writer(root_ / "data", split, kVocab, 2500);
    writer.append(ids);
    writer.finish();
  }

  static constexpr std::int64_t kChannels = 32;
  static std::shared_ptr<const Decoder> decoder(std::int64_t heads, std::int64_t channels,
                                                std::int64_t layers = 2) {
    return std::make_shared<GPT2Decoder>(
        GPT2Config{.layers = layers, .heads = heads, .channels = channels, .vocab = kVocab, .context = 24});
  }

  TrainOptions options(const std::string& run) const {
    TrainOptions o;
    o.step.model = decoder(1, kChannels);
    o.step.B = 2;
    o.step.T = 24;
    o.step.slices = 4;
    o.schedule = {LearningRateSchedule::Kind::cosine, 1e-2, 2, 12, 0.1, 0.2};
    o.data = root_ / "data";
    o.out = root_ / run;
    return o;
  }

  // Runs to the end (or until `stop_after` steps) and returns the losses of the steps it ran.
  std::vector<double> train(const TrainOptions& o, std::int64_t stop_after = -1, int threads = 2) {
    ContextOptions c;
    c.threads = threads;
    std::atomic<bool> stop{false};
    std::int64_t operations = 0;
    if (stop_after_operations_ > 0) {
      c.verbose = true;  // a line for each operation
      c.log = [&](std::string_view) { stop = stop || ++operations == stop_after_operations_; };
    }
    Context context(c, device_);
    std::vector<double> losses;
    TrainObserver observer;
    observer.step = [&](const StepReport& r) {
      losses.push_back(r.loss);
      skipped_ = r.skipped;
      if (after_step_) after_step_();
      if (r.step == stop_after) stop = true;
    };
    observer.validation = [&](std::int64_t, double loss) { val_loss_ = loss; };
    observer.notice = [&](const std::string& line) { notices_ += line + "\n"; };
    observer.sample = [&](std::int64_t, const std::vector<std::int32_t>& tokens) { sample_ = tokens; };
    Trainer trainer(context, o, observer);
    finished_ = trainer.run(stop);
    operations_ = operations;
    return losses;
  }

  std::string weights(const std::string& run) const {
    return read_file(root_ / run / "model" / "model.safetensors", 1 << 26);
  }

  static constexpr std::int32_t kVocab = 50;
  Device device_;
  std::filesystem::path root_;
  bool finished_ = false;
  double val_loss_ = 0;
  std::int64_t stop_after_operations_ = 0, operations_ = 0;
  std::function<void()> after_step_;
  std::string notices_;
  std::string skipped_;
  std::vector<std::int32_t> sample_;
};

}  // namespace warpwright
