// Starts the program with mpirun, as a user does.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

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

}  // namespace warpwright
