// Ends the program, or asks a run to stop, on SIGINT, SIGTERM and SIGHUP.
#pragma once

#include <atomic>
#include <csignal>

namespace warpwright::cli {

// The signals that end the program.
inline constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Installs a handler, after which interrupted system calls go on. A signal that is ignored (nohup, a
// background job) stays ignored. `before`, if given, is the action before it, written before the handler is
// there.
void handle_signal(int signal, void (*handler)(int), struct sigaction* before = nullptr);

// From now on these signals end the program at once, whatever it is doing. Unfinished output is removed, and
// the exit code is 128 + the signal's number.
void end_cleanly_on_signals();

// Asks a long run to stop at the next place where it can go on later.
struct StopRequest {
  std::atomic<bool> made{false};
  std::atomic<int> signal{0};  // the first that asked; 0 if something else did
};
extern StopRequest stop_request;

// From now on these signals make `stop_request`. A second SIGINT ends the program at once; more of the others
// change nothing, since a scheduler may send them while the last checkpoint is written.
void stop_on_signals();

// Thrown once a command that was asked to stop has wound down: the exit code is 128 + signal.
struct StoppedBySignal {
  int signal;
};

}  // namespace warpwright::cli
