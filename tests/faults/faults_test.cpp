// For every command that writes: each system call fails once, and the process is killed before each call that
// changes something. The command must exit with 0, or with 1 and one line. Its output must be the old or the
// new one. Running it again must give the result of an undisturbed run. A training run must give the same
// bits.
//
// The ordinary suite samples some of the first and last calls of each kind on each file, with one error each.
// WARPWRIGHT_STORM=1/1 in the environment tries every call with every error, and 3/8 tries the third eighth
// of them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <span>
#include <stdexcept>

#include "runtime/test_folder.hpp"
#include "tests/faults/scenario.hpp"

namespace warpwright::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Verdict::Kind;

constexpr int kFileErrors[] = {EIO, ENOSPC, EACCES, EINTR, ENOENT};
// ENOENT is a valid answer: the file is absent, or there are no more entries.
constexpr int kErrorsOfQuestions[] = {EIO, ENOSPC, EACCES, EINTR};
constexpr int kMemoryErrors[] = {ENOMEM};
constexpr int kMostReports = 40;
constexpr std::size_t kTrialsOfASmallTest = 40;  // per scenario
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Storm {
  std::size_t part = 0, parts = 0;  // part: 1 to parts
};

std::optional<Storm> storm() {
  const char* value = std::getenv("WARPWRIGHT_STORM");
  if (!value) return std::nullopt;
  Storm storm;
  if (std::sscanf(value, "%zu/%zu", &storm.part, &storm.parts) != 2 || storm.part < 1 ||
      storm.part > storm.parts) {
    throw std::invalid_argument(fmt::format("WARPWRIGHT_STORM is {}, not PART/PARTS", value));
  }
  return storm;
}

bool one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* other) { return name == other; });
}

std::span<const int> errors_of(const SystemCall& call) {
  const bool memory = call.path.empty() && one_of(call.name, {"mmap", "brk", "mremap", "mprotect"});
  if (memory) return kMemoryErrors;
  if (one_of(call.name, {"getdents64", "newfstatat"})) return kErrorsOfQuestions;
  return kFileErrors;
}

bool changes_something(const SystemCall& call) {
  return one_of(call.name,
                {"mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link",
                 "linkat", "openat", "write", "pwrite64", "writev", "ftruncate", "fallocate", "fsync"});
}

struct Trial {
  std::size_t call;
  Verdict verdict;
};

class FaultsTest : public TestFolder, public testing::WithParamInterface<std::size_t> {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer makes calls of its own, whose failure it does not survive";
    if (!can_trace()) GTEST_SKIP() << "needs a system that lets a process trace its child";
    stage_.emplace(folder, GetParam());
  }

  const Stage& stage() const { return *stage_; }
  std::vector<Trial> trials() const;
  void check(const Trial& trial);
  std::string problem_with(const Trial& trial);

  std::optional<Stage> stage_;
  std::set<Snapshot> continued;  // states from which a second run has already succeeded
  int problems = 0;
};

// Selects the calls to disturb and the disturbances.
std::vector<Trial> FaultsTest::trials() const {
  const std::vector<SystemCall>& calls = stage().golden().calls;
  std::map<std::string, std::pair<std::size_t, std::size_t>> ends;  // per kind: its first and last call
  // The same code writes all files inside a partial, so one of each kind is enough.
  const std::regex digits("[0-9]+"), inside(R"((\.(partial|deleted)-[^/]*/).*?(\.[a-z]+)?$)");
  const auto kind_of = [&](const SystemCall& call) {
    const std::string path = std::regex_replace(call.path.string(), inside, "$1$3");
    return call.name + " " + std::regex_replace(path, digits, "N");
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ends.try_emplace(kind_of(calls[i]), i, i).first->second.second = i;
  }
  std::vector<Trial> list;
  std::mt19937 random(20);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const SystemCall& call = calls[i];
    const auto [first, last] = ends.at(kind_of(call));
    if (!storm() && i != first && i != last) continue;
    const auto errors = errors_of(call);
    const std::size_t turn = random() % errors.size();
    for (std::size_t e = 0; e < errors.size(); ++e) {
      if (storm() || e == turn) list.push_back({i, {Kind::fail, errors[e]}});
    }
    if (changes_something(call)) list.push_back({i, {Kind::kill, 0}});
  }
  std::vector<Trial> some;
  if (const auto wanted = storm()) {
    for (std::size_t i = wanted->part - 1; i < list.size(); i += wanted->parts) some.push_back(list[i]);
    return some;
  }
  std::ranges::sample(list, std::back_inserter(some), kTrialsOfASmallTest, random);
  return some;
}

std::string FaultsTest::problem_with(const Trial& trial) {
  stage().reset();
  const Scenario& scenario = stage().scenario();
  std::size_t count = 0;
  SystemCall disturbed;
  const ProcessResult result = stage().run_traced(scenario.command, [&](const SystemCall& call) {
    if (count++ != trial.call) return Verdict{};
    disturbed = call;
    return trial.verdict;
  });
  const bool killed = trial.verdict.kind == Kind::kill, reached = count > trial.call;
  const int error = trial.verdict.error;
  const auto lines = std::count(result.err.begin(), result.err.end(), '\n'),
             quiet = stage().golden().lines_on_stderr;
  const bool on_stderr = disturbed.path == folder / "stderr", on_stdout = disturbed.path == folder / "stdout";
  const Expectation expected(scenario, stage().golden());
  const Snapshot state = snapshot_of(stage().world());
  const std::string said = fmt::format("exit {}, \"{}\"", result.code, result.err);
  // A partial is removed only if its target can be examined.
  const bool cleaning =
      disturbed.name == "newfstatat" || (is_partial(disturbed.path.string()) &&
                                         one_of(disturbed.name, {"unlink", "unlinkat", "rmdir", "openat",
                                                                 "getdents64", "fstat", "fcntl", "flock"}));
  if (killed && reached) {
    if (result.code != -SIGKILL) return "the kill had no effect: " + said;
  } else if (result.code == 0) {
    if (lines > quiet + 1) return said;  // a warning
    if (std::string wrong = expected.finished(state, cleaning); !wrong.empty())
      return said + ", but " + wrong;
  } else {
    if (result.code != 1 || (lines != 1 && !on_stderr)) return said;
  }
  // The kernel never interrupts the opening of a folder. Standard output is written by stdio.
  const bool retried = one_of(disturbed.name, {"openat", "read", "pread64", "write", "pwrite64", "fsync",
                                               "ftruncate", "fallocate", "flock", "close"}) &&
                       !disturbed.lists_folder && !on_stdout && !on_stderr;
  if (!killed && error == EINTR && retried && (result.code != 0 || lines > quiet))
    return "EINTR is not retried: " + said;
  // A run that cannot report stops early with a checkpoint and a model. Only the result after its resumption
  // counts.
  const bool stopped = on_stdout && !scenario.run.empty();
  if (std::string wrong = expected.disturbed(state, killed || cleaning); !wrong.empty() && !stopped)
    return said + ", but " + wrong;
  if (!continued.insert(state).second) return "";
  const ProcessResult again = run_process(scenario.again, folder);
  if (again.code != 0) return fmt::format("{}; then exit {}: {}", said, again.code, again.err);
  if (std::string wrong = expected.finished(snapshot_of(stage().world())); !wrong.empty())
    return said + "; after it, " + wrong;
  return "";
}

void FaultsTest::check(const Trial& trial) {
  const SystemCall& call = stage().golden().calls[trial.call];
  const std::string how =
      trial.verdict.kind == Kind::kill ? "killed before it" : strerrorname_np(trial.verdict.error);
  const std::string wrong = problem_with(trial);
  if (wrong.empty() || ++problems > kMostReports) return;
  ADD_FAILURE() << fmt::format("{}, call {} ({} {}), {}: {}", stage().scenario().name, trial.call, call.name,
                               without_process(call.path.lexically_relative(folder).string()), how, wrong);
}

TEST_P(FaultsTest, EveryCallFailsOnce) {
  const std::size_t calls = stage().golden().calls.size();
  ASSERT_GT(calls, 50u);
  const std::vector<Trial> list = trials();
  for (const Trial& trial : list) check(trial);
  EXPECT_EQ(problems, 0);
  fmt::print("{}: {} system calls, {} trials, {} states to go on from\n", stage().scenario().name, calls,
             list.size(), continued.size());
}

// Exceeding the file-size limit (ulimit -f) raises a signal unless the program asks for an error instead.
TEST(FaultsOfTheSystem, LimitOnFileSizeIsAnError) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("warpwright_limit{}", ::getpid());
  const Stage stage(folder, 0);
  stage.reset();
  const auto limit = [] {
    const rlimit small{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) _exit(125);
  };
  ProcessResult full;
  full.code = wait_for(start_process(stage.scenario().command, folder / "stdout", folder / "stderr", limit));
  full.err = read_file(folder / "stderr", 1 << 20);
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("File too large"), std::string::npos) << full.err;
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full.err;
  EXPECT_EQ(difference(snapshot_of(stage.world()), stage.golden().before), "");
  fs::remove_all(folder);
}

std::string test_name(const testing::TestParamInfo<std::size_t>& info) {
  std::string name = scenarios("/")[info.param].name;
  std::ranges::replace_if(
      name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Writers, FaultsTest, testing::Range<std::size_t>(0, scenarios("/").size()),
                         test_name);

}  // namespace
}  // namespace warpwright::faults
