// Runs the program and stops it at every system call. There a test can make the call fail, kill the process,
// or do something else first.
//
// The kernel reports the calls (seccomp and ptrace), so none is missed, whichever library makes it. Only
// calls that cannot fail, or whose failure has no effect, are left out (kHarmless in tracer.cpp).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/process.hpp"

namespace warpwright::faults {

struct SystemCall {
  std::string name;            // "openat"
  std::filesystem::path path;  // of its path argument, or else of its descriptor; empty if it has neither
  bool lists_folder = false;   // opens a folder to list it
  bool exchanges = false;      // exchanges two names
};

struct Verdict {
  enum class Kind { proceed, fail, kill };
  Kind kind = Kind::proceed;
  int error = 0;  // for fail: the errno that the process sees; the call is not made (except close)
};

// Decides the fate of the call at which the process has stopped. Calls before main() are not passed to it.
using Judge = std::function<Verdict(const SystemCall&)>;

// True if this system allows tracing a child process; some containers forbid it.
bool can_trace();

// Runs the program as run_process() does. Throws std::runtime_error if tracing is forbidden or the program's
// main() was never reached.
ProcessResult run_traced(const std::vector<std::string>& arguments, const std::filesystem::path& scratch,
                         const Judge& judge);

}  // namespace warpwright::faults
