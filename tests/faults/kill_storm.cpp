// kill_storm kills training, resumed training, data build and convert at random instants. Many kills hit the
// writing of a checkpoint, often while a second process runs in the same folder.
//
// After each kill every output must be the old or the new one, and the last checkpoint that the process
// announced, or a later one, must exist. After some kills the command runs to its end. Weights, optimizer,
// metrics and data must then equal those of an undisturbed run, with nothing left over. Exits with 1 if a
// check fails, and with 77 if the system does not allow tracing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "tests/faults/scenario.hpp"

namespace warpwright::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Verdict::Kind;
using Clock = std::chrono::steady_clock;

constexpr int kSkipped = 77;

struct Row {
  std::string name;
  int kills = 0, in_checkpoints = 0, starts = 0, refused = 0, finished = 0;

  Row& operator+=(const Row& other) {
    kills += other.kills;
    in_checkpoints += other.in_checkpoints;
    starts += other.starts;
    refused += other.refused;
    finished += other.finished;
    return *this;
  }
};

// True if a call is part of writing a checkpoint: it touches the partial or moves it into place.
bool writes_checkpoint(const SystemCall& call) {
  const std::string path = call.path.string();
  return path.find("/checkpoints/step_") != path.npos && is_partial(path);
}

// The last checkpoint that the killed process announced on standard output, as a path in the world.
std::string last_announced(const std::string& out, const fs::path& world) {
  constexpr std::string_view kSaid = "checkpoint /";
  const std::size_t start = out.rfind(kSaid);
  if (start == out.npos || (start > 0 && out[start - 1] != '\n')) return "";
  const std::size_t from = start + kSaid.size() - 1, end = out.find('\n', from);
  if (end == out.npos) return "";
  return fs::path(out.substr(from, end - from)).lexically_relative(world).string();
}

class Storm {
 public:
  Storm(const fs::path& folder, std::uint64_t seed) : folder_(folder), random_(seed) {}

  // Disturbs a scenario repeatedly until this many processes are killed.
  void play(std::size_t scenario, int kills);

  void print() const;
  bool good() const { return problems_ == 0; }

 private:
  struct Disturbance {
    ProcessResult result;
    bool in_checkpoint = false;
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }

  int live(int most_kills);
  bool disturb(bool resuming);
  Disturbance kill_at_call(const Command& command);
  Disturbance kill_at_time(const Command& command);
  void start_second(bool must_be_refused);
  void judge_second(int code, const std::string& err);
  void check(bool good, const std::string& what);
  // The row that counts this event: training, resumed training, or the command.
  Row& row();

  fs::path folder_;
  std::mt19937_64 random_;
  std::unique_ptr<Stage> stage_;
  double seconds_ = 0;  // time of an undisturbed run
  std::vector<Row> rows_;
  std::string doing_;
  int problems_ = 0;
};

Row& Storm::row() {
  const auto found = std::ranges::find(rows_, doing_, &Row::name);
  return found != rows_.end() ? *found : rows_.emplace_back(Row{doing_});
}

void Storm::check(bool good, const std::string& what) {
  if (good) return;
  ++problems_;
  fmt::print(stderr, "{}: {}\n", row().name, what);
}

void Storm::judge_second(int code, const std::string& err) {
  ++row().starts;
  if (code == 0) return;
  ++row().refused;
  check(code == 1 && std::count(err.begin(), err.end(), '\n') == 1,
        fmt::format("a second process: exit {}: {}", code, err));
}

// Starts a second process while the first is stopped.
void Storm::start_second(bool must_be_refused) {
  const fs::path scratch = stage_->folder() / "second";
  fs::create_directories(scratch);
  const ProcessResult result = run_process(stage_->scenario().again, scratch);
  judge_second(result.code, result.err);
  const bool refused = result.err.find("is in use") != std::string::npos;
  const bool had_nothing_to_do = result.out.find("finished already") != std::string::npos;
  check(!must_be_refused || refused || had_nothing_to_do,
        fmt::format("a second process was let in: exit {}: {}", result.code, result.err));
}

// Kills at a random call. In training, this is mostly a call that writes a checkpoint.
Storm::Disturbance Storm::kill_at_call(const Command& command) {
  const bool only_checkpoints = !stage_->scenario().run.empty() && chance(75);
  const auto counts = [&](const SystemCall& call) { return !only_checkpoints || writes_checkpoint(call); };
  const auto all = std::ranges::count_if(stage_->golden().calls, counts);
  std::int64_t left = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(all)));
  const bool with_second = chance(25);
  bool locks = false, has_lock = false;
  Disturbance d;
  d.result = stage_->run_traced(command, [&](const SystemCall& call) {
    const bool on_lock = call.path == stage_->world() / stage_->scenario().run / "lock";
    has_lock = (has_lock || locks) && !(on_lock && call.name == "close");
    locks = on_lock && call.name == "flock";  // it has the lock by its next call
    if (!counts(call) || left-- != 0) return Verdict{};
    if (with_second) start_second(has_lock);
    d.in_checkpoint = writes_checkpoint(call);
    return Verdict{Kind::kill};
  });
  return d;
}

// Kills at a random time, sometimes with a second process running.
Storm::Disturbance Storm::kill_at_time(const Command& command) {
  const fs::path out = stage_->folder() / "stdout", err = stage_->folder() / "stderr",
                 second_err = folder_ / "err";
  // Both files must exist and be empty even if the process is killed before it opens them.
  for (const fs::path& file : {out, err}) std::ofstream(file).close();
  const pid_t first = start_process(command, out, err);
  const pid_t second = chance(50) ? start_process(stage_->scenario().again, folder_ / "out", second_err) : 0;
  std::this_thread::sleep_for(
      std::chrono::duration<double>(seconds_ * static_cast<double>(below(1000)) / 1000));
  ::kill(first, SIGKILL);
  Disturbance d;
  d.result.code = wait_for(first);
  if (second) {
    const int code = wait_for(second);
    judge_second(code, read_file(second_err, 1 << 20));
  }
  d.result.out = read_file(out, 1 << 20);
  d.result.err = read_file(err, 1 << 20);
  return d;
}

// Returns true if a process was killed.
bool Storm::disturb(bool resuming) {
  const Scenario& scenario = stage_->scenario();
  const Command& command = resuming ? scenario.again : scenario.command;
  const Disturbance d = chance(70) ? kill_at_call(command) : kill_at_time(command);
  const Snapshot state = snapshot_of(stage_->world());
  const bool killed = d.result.code == -SIGKILL;
  const std::string wrong = Expectation(scenario, stage_->golden()).disturbed(state, true);
  check(wrong.empty(), wrong);
  check(killed || d.result.code == 0 || d.result.code == 1,
        fmt::format("exit {}: {}", d.result.code, d.result.err));
  if (const std::string announced = last_announced(d.result.out, stage_->world()); !announced.empty()) {
    const std::vector<std::string> there = checkpoints_in(state, scenario.run);
    check(!there.empty() && there.back() >= announced,
          fmt::format("{} was announced and is lost", announced));
  }
  row().kills += killed;
  row().in_checkpoints += killed && d.in_checkpoint;
  return killed;
}

// Runs a command to its end through some kills. Returns the number of killed processes.
int Storm::live(int most_kills) {
  const Scenario& scenario = stage_->scenario();
  stage_->reset();
  int kills = 0;
  do {
    const bool resumes = !checkpoints_in(snapshot_of(stage_->world()), scenario.run).empty();
    doing_ = scenario.run.empty() ? scenario.name : resumes ? "training, resumed" : "training";
  } while (disturb(kills > 0) && ++kills < most_kills);
  const ProcessResult last = run_process(scenario.again, stage_->folder());
  const std::string wrong = Expectation(scenario, stage_->golden()).finished(snapshot_of(stage_->world()));
  check(last.code == 0, fmt::format("the run after the kills: exit {}: {}", last.code, last.err));
  check(wrong.empty(), "after the run that followed the kills: " + wrong);
  ++row().finished;
  return kills;
}

void Storm::play(std::size_t scenario, int kills) {
  const fs::path folder = folder_ / fmt::format("stage{}", scenario);
  fs::create_directories(folder);
  stage_ = std::make_unique<Stage>(folder, scenario);
  stage_->reset();
  const auto start = Clock::now();
  must_run(stage_->scenario().command, folder);
  seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  while (kills > 0) kills -= live(std::min(kills, 1 + static_cast<int>(below(4))));
  stage_.reset();
  fs::remove_all(folder);
}

void Storm::print() const {
  Row sum{"total"};
  const auto line = [](const Row& r) {
    fmt::print("{:<34} {:>7} {:>19} {:>13} {:>9} {:>13}\n", r.name, r.kills, r.in_checkpoints, r.starts,
               r.refused, r.finished);
  };
  fmt::print("{:<34} {:>7} {:>19} {:>13} {:>9} {:>13}\n", "killed while it ran", "kills",
             "inside a checkpoint", "second starts", "refused", "runs to end");
  for (const Row& row : rows_) {
    line(row);
    sum += row;
  }
  line(sum);
  fmt::print("{}\n",
             problems_ == 0 ? "nothing lost, nothing unequal" : fmt::format("{} problems", problems_));
}

int run(int argc, char** argv) {
  CLI::App app("Kills the program at random instants and checks that nothing is lost", "kill_storm");
  int kills = 1000;
  std::uint64_t seed = std::random_device{}();
  app.add_option("--kills", kills, "Processes to kill")
      ->capture_default_str()
      ->check(CLI::Range(10, 1000000));
  app.add_option("--seed", seed, "Seed of all random choices; default: a new one each time");
  CLI11_PARSE(app, argc, argv);
  if (!can_trace()) {
    fmt::print("kill_storm: needs a system that lets a process trace its child\n");
    return kSkipped;
  }
  const fs::path folder = fs::temp_directory_path() / fmt::format("warpwright_storm_{}", ::getpid());
  fs::create_directories(folder);
  fmt::print("seed {}\n", seed);
  Storm storm(folder, seed);
  const std::vector<Scenario> all = scenarios("/");
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kill_percent > 0) storm.play(i, std::max(1, kills * all[i].kill_percent / 100));
  }
  storm.print();
  fs::remove_all(folder);
  return storm.good() ? 0 : 1;
}

}  // namespace
}  // namespace warpwright::faults

int main(int argc, char** argv) {
  try {
    return warpwright::faults::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kill_storm: {}\n", error.what());
    return 1;
  }
}
