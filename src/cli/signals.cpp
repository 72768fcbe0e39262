#include "cli/signals.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

#include "runtime/partial.hpp"

namespace warpwright::cli {
namespace {

int signal_pipe[2] = {-1, -1};  // the handler writes, the thread reads

// Only async-signal-safe calls here.
extern "C" void pass_on(int signal) {
  const int before = errno;
  const auto number = static_cast<unsigned char>(signal);
  if (::write(signal_pipe[1], &number, 1) != 1) _exit(128 + signal);
  errno = before;
}

// Runs in a thread of its own, so that cleaning up may lock and allocate, and works while other threads block
// on standard input or multiply matrices.
void wait_for_signal() {
  unsigned char signal = 0;
  while (::read(signal_pipe[0], &signal, 1) != 1) {
    if (errno != EINTR) return;
  }
  remove_live_partials();
  if (::isatty(STDERR_FILENO) == 1) {
    [[maybe_unused]] const auto cleared = ::write(STDERR_FILENO, "\r\033[K", 4);  // erases the progress line
  }
  _exit(128 + signal);
}

struct sigaction interrupt_before_stop;  // the handler of SIGINT before stop_on_signals()

extern "C" void request_stop(int signal) {
  int none = 0;
  stop_request.signal.compare_exchange_strong(none, signal);
  stop_request.made = true;
  if (signal == SIGINT) ::sigaction(SIGINT, &interrupt_before_stop, nullptr);
}

}  // namespace

StopRequest stop_request;

void handle_signal(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction present {};
  ::sigaction(signal, nullptr, &present);
  if (before) *before = present;
  if (present.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

void end_cleanly_on_signals() {
  if (::pipe2(signal_pipe, O_CLOEXEC) != 0) return;  // signals then end the process without cleaning up
  try {
    std::thread(wait_for_signal).detach();
  } catch (const std::system_error&) {
    return;
  }
  for (const int signal : kEndingSignals) handle_signal(signal, pass_on);
}

void stop_on_signals() {
  handle_signal(SIGINT, request_stop, &interrupt_before_stop);
  for (const int signal : {SIGTERM, SIGHUP}) handle_signal(signal, request_stop);
}

}  // namespace warpwright::cli
