#include "cli/waiting.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace warpwright::cli {

void limit_spinning(char** argv) {
  // Half a millisecond to one: longer than the gaps between the parallel regions of a training step, shorter
  // than a time slice.
  constexpr const char* kTurns = "20000";
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  if (::getauxval(AT_BASE) == 0) return;  // started as `ld.so warpwright`: /proc/self/exe is the loader
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv(kVariable)) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || ::setenv(kVariable, kTurns, 1) != 0) return;
  ::execv(program.c_str(), argv);  // if it fails, the program goes on as it was started
}

}  // namespace warpwright::cli
