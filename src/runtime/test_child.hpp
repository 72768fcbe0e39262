// Runs test code in a child process, under a limit or with a system call that fails.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace warpwright {

// The exit status of a child process that does this; −1 if a signal ended it.
inline int run_in_child(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 125;
    try {
      result = action();
    } catch (...) {
    }
    ::_exit(result);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// No file of this process may get longer.
inline void limit_file_size(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit sizes{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &sizes);
}

// From now on this system call fails in this process and what it starts, if its argument has any of the bits
// (0: always).
inline bool fail_system_call(long number, int error, unsigned argument = 0, std::uint32_t bits = 0) {
  const auto at = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
      BPF_JUMP(BPF_JMP | (bits ? BPF_JSET : BPF_JGE) | BPF_K, bits, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof code / sizeof code[0], code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace warpwright
