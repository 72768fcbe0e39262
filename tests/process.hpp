// Runs the warpwright binary as a user does and returns its result.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/file.hpp"

namespace warpwright {

struct ProcessResult {
  int code = -1;    // exit code; −signal if a signal ended the process
  std::string out;  // standard output
  std::string err;  // standard error
};

// Starts the binary, or another program, with these arguments and with its outputs in these files. The child
// calls `prepare` just before exec.
inline pid_t start_process(const std::vector<std::string>& arguments, const std::filesystem::path& out,
                           const std::filesystem::path& err, void (*prepare)() = nullptr,
                           const char* program = WARPWRIGHT_BINARY) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  if (!std::freopen(out.c_str(), "w", stdout) || !std::freopen(err.c_str(), "w", stderr) ||
      !std::freopen("/dev/null", "r", stdin)) {
    _exit(126);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    std::signal(signal, SIG_DFL);  // nohup makes them ignored
  if (prepare) prepare();
  std::vector<char*> argv{const_cast<char*>(program)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(program, argv.data());
  _exit(127);
}

inline int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline ProcessResult run_process(const std::vector<std::string>& arguments,
                                 const std::filesystem::path& scratch,
                                 const char* program = WARPWRIGHT_BINARY) {
  const auto out = scratch / "stdout", err = scratch / "stderr";
  ProcessResult result;
  result.code = wait_for(start_process(arguments, out, err, nullptr, program));
  result.out = read_file(out, 1 << 26);
  result.err = read_file(err, 1 << 26);
  return result;
}

}  // namespace warpwright
