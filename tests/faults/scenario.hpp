// Commands that write, each with its starting state and its required final state.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/faults/snapshot.hpp"
#include "tests/faults/tracer.hpp"

namespace warpwright::faults {

using Command = std::vector<std::string>;

// Runs a command. Throws std::runtime_error with its output if it fails.
void must_run(const Command& command, const std::filesystem::path& scratch);

struct Scenario {
  std::string name;
  std::vector<Command> before = {};       // commands that prepare the starting state
  std::vector<std::string> removed = {};  // paths of the world that are then removed
  Command command;
  Command again;                     // the command to run if its output may exist
  std::vector<std::string> outputs;  // paths of the world, each of which must be in its old or its new state
  std::string files = {};            // a folder whose files are outputs too; may be empty
  std::string run = {};              // the folder of a training run in the world; may be empty
  std::string cache = {};    // a folder whose files may be missing, since a cache is optional; may be empty
  int kill_percent = 0;      // share of the storm's kills
  bool can_exchange = true;  // the file system can exchange two names (NFS cannot)
};

std::vector<Scenario> scenarios(const std::filesystem::path& world);

// An undisturbed run of a scenario, with which the others are compared.
struct Golden {
  Snapshot before, after;
  std::vector<SystemCall> calls;
  std::ptrdiff_t lines_on_stderr = 0;
  std::map<std::string, Snapshot> checkpoints;  // of a training run, by path
};

// Runs a scenario repeatedly from the same starting state, in FOLDER/world. The program's output goes to
// FOLDER/stdout and FOLDER/stderr.
class Stage {
 public:
  // Makes the inputs, which are small so that a run takes about 50 ms, and runs the scenario undisturbed.
  Stage(const std::filesystem::path& folder, std::size_t scenario);

  void reset() const;  // restores the starting state

  // Runs a command traced by a judge, on the scenario's kind of file system.
  ProcessResult run_traced(const Command& command, const Judge& judge) const;

  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& world() const { return world_; }
  const Scenario& scenario() const { return scenario_; }
  const Golden& golden() const { return golden_; }

 private:
  void run_undisturbed();

  std::filesystem::path folder_, world_, initial_;
  Scenario scenario_;
  Golden golden_;
};

// Checks states of the world. Each function returns a description of the first fault, or "".
class Expectation {
 public:
  Expectation(const Scenario& scenario, const Golden& golden) : scenario_(scenario), golden_(golden) {}

  // The state after a disturbed command: every output is old or new, and nothing else has changed. Partials
  // may remain if the process was killed or its cleanup was disturbed.
  std::string disturbed(const Snapshot& state, bool partials_may_be_left) const;
  // The state after the command or `again` has succeeded: as in an undisturbed run. Partials may remain if
  // the cleanup was disturbed.
  std::string finished(const Snapshot& state, bool partials_may_be_left = false) const;

 private:
  bool is_output(const std::string& path) const;
  std::string wrong_in_cache(const Snapshot& state) const;

  const Scenario& scenario_;
  const Golden& golden_;
};

// The paths of the checkpoints in a run's folder.
std::vector<std::string> checkpoints_in(const Snapshot& world, const std::string& run);

bool is_partial(const std::string& path);

}  // namespace warpwright::faults
