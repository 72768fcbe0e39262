// Tests how --gpus starts and watches its processes. They are this program again: in a process that has the
// variable, what it says happens before main().
#include "cli/gpu_ranks.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright::cli {
namespace {

constexpr const char* kBehaviour = "WARPWRIGHT_TEST_RANK";

// "2:3": rank 2 ends with 3, and the others wait for a signal. "all": all end with 0. Anything else is a
// folder, in which each rank notes its variables.
const struct RankOfATest {
  RankOfATest() {
    const char* behaviour = std::getenv(kBehaviour);
    const char* rank = std::getenv("RANK");
    if (!behaviour || !rank) return;
    const std::string_view text = behaviour;
    if (text == "all") _exit(0);
    if (text.starts_with('/')) {
      std::ofstream note(fmt::format("{}/{}", text, rank));
      for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}) {
        note << std::getenv(name) << ' ';
      }
      note.close();
      _exit(0);
    }
    if (text[0] == *rank) _exit(text[2] - '0');
    std::signal(SIGTERM, SIG_DFL);
    ::pause();
    _exit(0);
  }
} of_a_test;

class GpuRanks : public TestFolder {
 protected:
  void TearDown() override {
    ::unsetenv(kBehaviour);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD}) std::signal(signal, SIG_DFL);
  }
  int run(int gpus, const std::string& behaviour) const {
    ::setenv(kBehaviour, behaviour.c_str(), 1);
    return run_on_gpus(gpus);
  }
};

TEST_F(GpuRanks, EachProcessGetsTorchrunsVariables) {
  ::setenv("WORLD_SIZE", "77", 1);  // of a launcher that started this process
  EXPECT_EQ(run(3, folder.string()), 0);
  ::unsetenv("WORLD_SIZE");
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(read_file(folder / std::to_string(r), 1 << 10), fmt::format("3 {} 3 127.0.0.1 ", r));
  }
}

TEST_F(GpuRanks, AllThatSucceedGiveZero) {
  EXPECT_EQ(run(4, "all"), 0);
}

TEST_F(GpuRanks, ASignalReachesAll) {
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(::getpid(), SIGTERM);
  });
  EXPECT_EQ(run(3, "9:0"), 128 + SIGTERM);
  sender.join();
}

// After a time in which they could end by themselves, whatever signals whoever started this process ignores.
TEST_F(GpuRanks, TheFirstThatFailsEndsTheOthers) {
  for (const int signal : {SIGALRM, SIGCHLD}) std::signal(signal, SIG_IGN);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run(3, "1:7"), 7);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Children that are no ranks, such as those that a container's first process inherits.
TEST_F(GpuRanks, OtherChildrenDoNotCount) {
  std::vector<pid_t> others;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::usleep(300'000);
      _exit(9);
    }
    others.push_back(child);
  }
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ::kill(::getpid(), SIGTERM);
  });
  EXPECT_EQ(run(3, "9:0"), 128 + SIGTERM);
  sender.join();
  for (const pid_t child : others) EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(GpuOfARank, Device) {
  const Device gpu{DeviceKind::cuda, 0};
  EXPECT_EQ(device_of_rank({}, gpu), gpu);
  EXPECT_EQ(device_of_rank({}, Device{}), Device{});
  EXPECT_EQ(device_of_rank({.by = Launch::By::mpi, .ranks = 4}, Device{}), Device{});
  EXPECT_THROW(device_of_rank({.by = Launch::By::store, .ranks = 4}, Device{}), UsageError);
}

}  // namespace
}  // namespace warpwright::cli
