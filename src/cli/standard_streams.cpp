#include "cli/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "core/error.hpp"
#include "core/one_line.hpp"
#include "text/unicode.hpp"

namespace warpwright::cli {
namespace {

constexpr const char *kOutput = "standard output",
                     *kOutputRemedy = "check the free space or the program that reads it";

// Reopens the stream, because other processes share the mode of the given one.
void make_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int anew = ::open(path.c_str(), flags & (O_ACCMODE | O_APPEND));
  if (anew < 0) return;  // a socket: used as it is
  ::dup2(anew, fd);
  ::close(anew);
}

}  // namespace

void claim_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) {
      make_blocking(fd);
    } else {
      ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the lowest free descriptor: fd
    }
  }
}

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw_system_error("write", kOutput, kOutputRemedy);
  }
}

void require_whole_output() {
  if (std::fflush(stdout) != 0) throw_system_error("write", kOutput, kOutputRemedy);
  if (std::ferror(stdout) != 0) throw Error("cannot be written to its end", kOutput, kOutputRemedy);
}

std::string plain_line(std::string_view text) {
  return text::repair_utf8(one_line(text));
}

void write_message(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void report_error(std::string_view message) {
  constexpr std::size_t kLongest = 2000;
  std::string line = plain_line(message);
  if (line.size() > kLongest) {
    const std::string ends = line.substr(0, kLongest / 2) + " … " + line.substr(line.size() - kLongest / 2);
    line = plain_line(ends);  // a cut may divide a character
  }
  write_message("warpwright: " + line + "\n");
}

}  // namespace warpwright::cli
