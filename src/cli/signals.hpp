// Ends the program cleanly on SIGINT, SIGTERM and SIGHUP.
#pragma once

namespace warpwright::cli {

// From now on these signals end the program at once, whatever it is doing: unfinished output is removed and
// the exit code is 128 + the signal's number. A signal that was already ignored (nohup, a background job)
// stays ignored. `train` installs handlers of its own.
void end_cleanly_on_signals();

// Thrown once a command that was asked to stop has wound down: the exit code is 128 + signal.
struct StoppedBySignal {
  int signal;
};

}  // namespace warpwright::cli
