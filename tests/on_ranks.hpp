// Starts the program with mpirun, as a user does, and with the variables of torchrun and srun.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/store.hpp"
#include "tests/process.hpp"

namespace warpwright {

using Words = std::vector<std::string>;

// Why tests with several ranks cannot run here, or "".
inline std::string no_ranks_here() {
#ifndef WARPWRIGHT_MPI
  return "this build has no MPI";
#endif
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) return "there is no mpirun";
  ::setenv("LSAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI keeps memory to the end
  return "";
}

// The arguments of mpirun.
inline Words on_ranks(int ranks, const Words& words) {
  Words all = {"--oversubscribe", "--allow-run-as-root", "-n", std::to_string(ranks), WARPWRIGHT_BINARY};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

inline ProcessResult run_on_ranks(int ranks, const Words& words, const std::filesystem::path& scratch) {
  if (ranks == 1) return run_process(words, scratch);
  return run_process(on_ranks(ranks, words), scratch, "mpirun");
}

// The program's own lines; mpirun adds a report.
inline Words own_lines(const std::string& err) {
  Words lines;
  std::istringstream all(err);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("warpwright: ")) lines.push_back(line);
  }
  return lines;
}

// Variables of the environment.
using Settings = std::vector<std::pair<const char*, std::string>>;
inline Settings as_torchrun(int rank, int ranks, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", std::to_string(port)}};
}
inline Settings as_srun(int rank, int ranks, int port) {
  return {{"SLURM_STEP_NUM_TASKS", std::to_string(ranks)},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", std::to_string(port)}};
}

// Starts one rank, with its output in scratch/out_RANK and scratch/err_RANK.
inline pid_t start_launched(int rank, const Words& words, const Settings& settings,
                            const std::filesystem::path& scratch) {
  for (const auto& [name, value] : settings) ::setenv(name, value.c_str(), 1);
  const pid_t process = start_process(words, scratch / ("out_" + std::to_string(rank)),
                                      scratch / ("err_" + std::to_string(rank)));
  for (const auto& [name, value] : settings) ::unsetenv(name);
  return process;
}

struct Outcome {
  int code;
  std::string out;
  Words lines;
};
inline Outcome outcome_of(int rank, pid_t process, const std::filesystem::path& scratch) {
  const int code = wait_for(process);
  const auto text = [&](const char* name) {
    return read_file(scratch / (name + std::to_string(rank)), 1 << 26);
  };
  return {code, text("out_"), own_lines(text("err_"))};
}

// Runs ranks on this machine as a launcher does that is not MPI's. Others are missing.
inline std::vector<Outcome> run_launched(int ranks, const Words& words, const std::filesystem::path& scratch,
                                         int missing = 0, Settings (*launcher)(int, int, int) = as_torchrun) {
  const int port = free_local_port();
  std::vector<pid_t> processes;
  for (int r = 0; r < ranks; ++r) {
    processes.push_back(start_launched(r, words, launcher(r, ranks + missing, port), scratch));
  }
  std::vector<Outcome> outcomes;
  for (int r = 0; r < ranks; ++r) {
    outcomes.push_back(outcome_of(r, processes[static_cast<std::size_t>(r)], scratch));
  }
  return outcomes;
}

}  // namespace warpwright
