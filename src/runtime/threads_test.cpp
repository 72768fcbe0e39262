#include "runtime/threads.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "core/error.hpp"
#include "runtime/context.hpp"
#include "runtime/test_cgroup.hpp"

namespace warpwright {
namespace {

// Sets or, for null, unsets OMP_NUM_THREADS as long as it lives.
class ThreadsVariable {
 public:
  explicit ThreadsVariable(const char* value) {
    if (const char* before = std::getenv(kName)) before_ = before;
    set(value);
  }
  ~ThreadsVariable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  static constexpr const char* kName = "OMP_NUM_THREADS";
  static void set(const char* value) { value ? ::setenv(kName, value, 1) : ::unsetenv(kName); }
  std::optional<std::string> before_;
};

// True if the check holds in a forked child, which has one thread and its own limits.
bool in_child(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Threads : public TestCgroup {
 protected:
  ThreadsVariable unset{nullptr};
};

TEST_F(Threads, TheDefaultIsTheSmallerOfAffinityAndQuotaRoundedUp) {
  unified("/a");
  const DefaultThreads free = default_threads(folder);
  EXPECT_EQ(free.threads, omp_get_num_procs());
  EXPECT_EQ(free.source, DefaultThreads::Source::affinity);
  EXPECT_FALSE(free.quota);
  put("sys/fs/cgroup/a/cpu.max", "1 100000\n");
  EXPECT_EQ(default_threads(folder).threads, 1);
  put("sys/fs/cgroup/a/cpu.max", "409600000 100000\n");
  EXPECT_EQ(default_threads(folder).threads, free.threads);
  EXPECT_EQ(default_threads(folder).source, DefaultThreads::Source::affinity);
  if (free.processors < 2) GTEST_SKIP() << "needs two processors";
  put("sys/fs/cgroup/a/cpu.max", "1e300 1\n");
  EXPECT_EQ(default_threads(folder).threads, free.threads);
  put("sys/fs/cgroup/a/cpu.max", "90000 100000\n");
  EXPECT_EQ(default_threads(folder).threads, 1);
  EXPECT_EQ(default_threads(folder).source, DefaultThreads::Source::quota);
  EXPECT_EQ(default_threads(folder).reason(), "the CPU quota of cgroup /a");
  put("sys/fs/cgroup/a/cpu.max", "110000 100000\n");
  EXPECT_EQ(default_threads(folder).threads, 2);
}

TEST_F(Threads, TheEnvironmentWins) {
  unified("/");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  for (const auto& [text, threads] : {std::pair("7", 7), {" 3 ", 3}, {"5,2", 5}, {"4096", 4096}}) {
    const ThreadsVariable variable(text);
    EXPECT_EQ(default_threads(folder).threads, threads);
    EXPECT_EQ(default_threads(folder).reason(), "OMP_NUM_THREADS");
  }
  for (const char* text : {"0", "-1", "4097", "100000", "99999999999999999999", "2.5", "two", "2 3", ","}) {
    const ThreadsVariable variable(text);
    EXPECT_THROW(default_threads(folder), UsageError) << text;
  }
  const ThreadsVariable empty("");
  EXPECT_EQ(default_threads(folder).threads, 1);
}

TEST_F(Threads, TheDefaultFollowsTheAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  if (CPU_COUNT(&mask) < 2) GTEST_SKIP() << "needs two processors";
  int first = 0;
  while (!CPU_ISSET(first, &mask)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  EXPECT_TRUE(in_child([&] {
    if (::sched_setaffinity(0, sizeof(one), &one) != 0) return false;
    return default_threads(folder).threads == 1;
  }));
}

TEST_F(Threads, NumbersAreChecked) {
  EXPECT_EQ(checked_threads(3, "--threads"), 3);
  EXPECT_EQ(checked_threads(kMaxThreads, "--threads"), kMaxThreads);
  EXPECT_GE(checked_threads(0, "--threads"), 1);
  for (const std::int64_t threads :
       {std::int64_t{-1}, std::int64_t{kMaxThreads} + 1, std::int64_t{INT32_MAX}, INT64_MIN, INT64_MAX}) {
    EXPECT_NE(message_of([&] { checked_threads(threads, "--threads"); }).find("--threads: "),
              std::string::npos);
  }
  ContextOptions options;
  options.threads = 100000;
  EXPECT_THROW(Context{options}, UsageError);
  Context context;
  const int before = context.threads();
  EXPECT_THROW(context.set_threads(100000), UsageError);
  EXPECT_EQ(context.threads(), before);
}

// The number of threads that a parallel region of that size gets.
int team_of(int threads) {
  int team = 0;
#pragma omp parallel num_threads(threads)
#pragma omp single
  team = omp_get_num_threads();
  return team;
}

TEST_F(Threads, AreClaimedForTheCallingThread) {
  std::thread([] {
    EXPECT_EQ(claimed_threads(), 1);
    claim_threads(6);
    EXPECT_EQ(claimed_threads(), 6);
    claim_threads(2);
    EXPECT_EQ(claimed_threads(), 6);
    EXPECT_EQ(team_of(6), 6);
  }).join();
}

// libgomp ends the process if it cannot start a thread, so all of them must exist from then on.
TEST_F(Threads, AreThereOnceTheyAreClaimed) {
  EXPECT_TRUE(in_child([] {
    claim_threads(5);
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}) >= 5;
  }));
}

TEST_F(Threads, AStackThatTheSystemRefusesIsAnError) {
  EXPECT_TRUE(in_child([] {
    ::setenv("OMP_STACKSIZE", "900000G", 1);
    return message_of([] { claim_threads(2); }).find("CPU threads: the system grants 1 of 2") == 0;
  }));
}

TEST_F(Threads, AThreadThatTheSystemRefusesIsAnError) {
  EXPECT_TRUE(in_child([] {
    // The limit does not bind root.
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return false;
    const rlimit limit{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return false;
    const std::string message = message_of([] { claim_threads(kMaxThreads); });
    if (message.find("CPU threads: the system grants ") != 0) return false;
    ContextOptions options;
    options.threads = kMaxThreads - 1;
    return message_of([&] { Context{options}; }) != "no error" && team_of(1) == 1;
  }));
}

}  // namespace
}  // namespace warpwright
