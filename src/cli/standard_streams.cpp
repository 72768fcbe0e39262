#include "cli/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "core/error.hpp"

namespace warpwright::cli {
namespace {

constexpr const char *kOutput = "standard output",
                     *kRemedy = "check the free space or the program that reads it";

}  // namespace

void claim_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free descriptor, which is fd
  }
}

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw_system_error("write", kOutput, kRemedy);
  }
}

void require_whole_output() {
  if (std::fflush(stdout) != 0) throw_system_error("write", kOutput, kRemedy);
  if (std::ferror(stdout) != 0) throw Error("cannot be written to its end", kOutput, kRemedy);
}

void write_message(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace warpwright::cli
