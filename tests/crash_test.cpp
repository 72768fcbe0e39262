// A run that is killed again and again, also in the middle of writing checkpoints, ends with the same bits as
// one that was left in peace; a disk that takes no more bytes costs nothing but the new checkpoint.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <set>

#include "data/shard.hpp"
#include "runtime/test_folder.hpp"
#include "tests/process.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class CrashTest : public TestFolder {
 protected:
  CrashTest() {
    fs::create_directory(folder / "data");
    for (const char* split : {"train", "val"}) {
      std::vector<std::int32_t> ids(5000);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 61);
      ShardWriter writer(folder / "data", split, 64, 10000);
      writer.append(ids);
      writer.finish();
    }
  }

  std::vector<std::string> arguments(const std::string& run, int steps) const {
    return {"train",
            "--layers",
            "2",
            "--heads",
            "2",
            "--channels",
            "48",
            "--vocab",
            "64",
            "--seq",
            "16",
            "--batch",
            "2",
            "--steps",
            std::to_string(steps),
            "--threads",
            "1",
            "--checkpoint-every",
            "2",
            "--keep",
            "2",
            "--dtype",
            "bf16",
            "--data",
            (folder / "data").string(),
            "--out",
            (folder / run).string(),
            "--resume"};
  }

  // The unfinished checkpoints that a run's folder holds.
  std::set<std::string> partials(const std::string& run) const {
    std::set<std::string> names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / run / "checkpoints", ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.find(".partial-") != std::string::npos) names.insert(name);
    }
    return names;
  }

  // Waits until the child has begun its `count`-th checkpoint, or has ended.
  void wait_for_checkpoint(pid_t child, int count, std::set<std::string> seen) const {
    while (count > 0 && waitpid(child, nullptr, WNOHANG) == 0) {
      for (const std::string& name : partials("killed")) count -= seen.insert(name).second;
      usleep(100);
    }
  }

  std::string weights(const std::string& run) const {
    return read_file(folder / run / "model" / "model.safetensors", 1 << 26);
  }
};

TEST_F(CrashTest, FiftyKillsLeaveNoTrace) {
  constexpr int kSteps = 600, kKills = 50, kInsideWriting = 20;
  ASSERT_EQ(run_process(arguments("calm", kSteps), folder).code, 0);
  std::mt19937 random(20261120);
  int inside = 0;
  for (int kill_index = 0; kill_index < kKills; ++kill_index) {
    const std::set<std::string> before = partials("killed");
    const pid_t child = start_process(arguments("killed", kSteps), folder / "out", folder / "err");
    if (kill_index % 5 !=
        4) {  // most of them while a checkpoint is being written, the first to the third one
      wait_for_checkpoint(child, 1 + static_cast<int>(random() % 3), before);
      usleep(random() % 2000);
    } else {
      usleep(random() % 300000);
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(wait_for(child), -SIGKILL) << read_file(folder / "err", 1 << 20);
    const std::set<std::string> after = partials("killed");
    inside += !after.empty() && after != before;
  }
  EXPECT_GE(inside, kInsideWriting);
  const ProcessResult last = run_process(arguments("killed", kSteps), folder);
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_NE(last.out.find("resumed after step"), std::string::npos);
  EXPECT_TRUE(weights("killed") == weights("calm"));
  EXPECT_TRUE(partials("killed").empty());
}

// A limit on the size of a file stands for a full disk: the write that crosses it fails.
TEST_F(CrashTest, FailedWriteLeavesThePreviousCheckpoint) {
  ASSERT_EQ(run_process(arguments("run", 4), folder).code, 0);
  fs::remove_all(folder / "run" / "model");
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 100000;
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const ProcessResult full = run_process(arguments("run", 8), folder);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("safetensors"), std::string::npos) << full.err;
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full.err;
  EXPECT_TRUE(partials("run").empty());
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000004/trainer.json"));
  const ProcessResult after = run_process(arguments("run", 8), folder);
  EXPECT_EQ(after.code, 0) << after.err;
  EXPECT_NE(after.out.find("resumed after step 4"), std::string::npos) << after.out;
}

TEST_F(CrashTest, UnwritableFolderIsOneLine) {
  const ProcessResult r = run_process(arguments("../../../../proc/no", 4), folder);
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
}

}  // namespace
}  // namespace warpwright
