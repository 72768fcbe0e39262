#include "tests/faults/tracer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace warpwright::faults {
namespace {

namespace fs = std::filesystem;

using Registers = user_regs_struct;

// The arguments of a system call that hold a path and a descriptor. With a path, the descriptor is its base
// folder.
struct CallForm {
  long number;
  const char* name;
  int path = -1, descriptor = -1;
};

constexpr CallForm kForms[] = {
    {SYS_open, "open", 0},
    {SYS_openat, "openat", 1, 0},
    {SYS_creat, "creat", 0},
    {SYS_stat, "stat", 0},
    {SYS_lstat, "lstat", 0},
    {SYS_newfstatat, "newfstatat", 1, 0},
    {SYS_statx, "statx", 1, 0},
    {SYS_statfs, "statfs", 0},
    {SYS_access, "access", 0},
    {SYS_faccessat, "faccessat", 1, 0},
    {SYS_faccessat2, "faccessat2", 1, 0},
    {SYS_readlink, "readlink", 0},
    {SYS_readlinkat, "readlinkat", 1, 0},
    {SYS_mkdir, "mkdir", 0},
    {SYS_mkdirat, "mkdirat", 1, 0},
    {SYS_unlink, "unlink", 0},
    {SYS_unlinkat, "unlinkat", 1, 0},
    {SYS_rmdir, "rmdir", 0},
    {SYS_rename, "rename", 0},
    {SYS_renameat, "renameat", 1, 0},
    {SYS_renameat2, "renameat2", 1, 0},
    {SYS_link, "link", 0},
    {SYS_linkat, "linkat", 1, 0},
    {SYS_symlink, "symlink", 1},
    {SYS_symlinkat, "symlinkat", 2, 1},
    {SYS_truncate, "truncate", 0},
    {SYS_chmod, "chmod", 0},
    {SYS_fchmodat, "fchmodat", 1, 0},
    {SYS_chown, "chown", 0},
    {SYS_fchownat, "fchownat", 1, 0},
    {SYS_utimensat, "utimensat", 1, 0},
    {SYS_execve, "execve", 0},
    {SYS_read, "read", -1, 0},
    {SYS_pread64, "pread64", -1, 0},
    {SYS_readv, "readv", -1, 0},
    {SYS_preadv, "preadv", -1, 0},
    {SYS_write, "write", -1, 0},
    {SYS_pwrite64, "pwrite64", -1, 0},
    {SYS_writev, "writev", -1, 0},
    {SYS_pwritev, "pwritev", -1, 0},
    {SYS_close, "close", -1, 0},
    {SYS_fstat, "fstat", -1, 0},
    {SYS_fstatfs, "fstatfs", -1, 0},
    {SYS_fsync, "fsync", -1, 0},
    {SYS_fdatasync, "fdatasync", -1, 0},
    {SYS_syncfs, "syncfs", -1, 0},
    {SYS_ftruncate, "ftruncate", -1, 0},
    {SYS_fallocate, "fallocate", -1, 0},
    {SYS_fadvise64, "fadvise64", -1, 0},
    {SYS_flock, "flock", -1, 0},
    {SYS_fcntl, "fcntl", -1, 0},
    {SYS_ioctl, "ioctl", -1, 0},
    {SYS_lseek, "lseek", -1, 0},
    {SYS_getdents64, "getdents64", -1, 0},
    {SYS_fchmod, "fchmod", -1, 0},
    {SYS_fchown, "fchown", -1, 0},
    {SYS_fgetxattr, "fgetxattr", -1, 0},
    {SYS_copy_file_range, "copy_file_range", -1, 0},
    {SYS_sendfile, "sendfile", -1, 0},
    {SYS_mmap, "mmap", -1, 4},
    {SYS_brk, "brk"},
    {SYS_mremap, "mremap"},
    {SYS_mprotect, "mprotect"},
    {SYS_clone, "clone"},
    {SYS_clone3, "clone3"},
    {SYS_sysinfo, "sysinfo"},
    {SYS_getcwd, "getcwd"},
    {SYS_pipe2, "pipe2"},
    {SYS_poll, "poll"},
    {SYS_dup, "dup"},
    {SYS_prlimit64, "prlimit64"},
    {SYS_sched_getaffinity, "sched_getaffinity"},
    {SYS_sched_setaffinity, "sched_setaffinity"},
};

// Clocks, signals, waiting, a thread's identity, the return of memory, and the request for AMX (arch_prctl).
constexpr long kHarmless[] = {
    SYS_exit,          SYS_exit_group,      SYS_rt_sigaction,   SYS_rt_sigprocmask,  SYS_rt_sigreturn,
    SYS_sigaltstack,   SYS_restart_syscall, SYS_futex,          SYS_sched_yield,     SYS_getpid,
    SYS_getcpu,        SYS_arch_prctl,      SYS_gettid,         SYS_clock_gettime,   SYS_gettimeofday,
    SYS_nanosleep,     SYS_clock_nanosleep, SYS_clock_getres,   SYS_set_robust_list, SYS_rseq,
    SYS_munmap,        SYS_madvise,         SYS_tgkill,         SYS_set_tid_address, SYS_timer_create,
    SYS_timer_settime, SYS_timer_delete,    SYS_rt_sigtimedwait};

const CallForm* form_of(long number) {
  const auto* found = std::ranges::find(kForms, number, &CallForm::number);
  return found == std::end(kForms) ? nullptr : found;
}

std::uint64_t argument(const Registers& r, int index) {
  const std::uint64_t all[] = {r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9};
  return all[index];
}

// A zero-terminated text in the process's memory. It is read page by page, because the next page may be
// unmapped.
std::string text_at(pid_t pid, std::uint64_t address) {
  constexpr std::uint64_t kPage = 4096;
  std::string text;
  std::array<char, kPage> page;
  while (text.size() < PATH_MAX) {
    iovec here{page.data(), static_cast<std::size_t>(kPage - address % kPage)};
    iovec there{reinterpret_cast<void*>(address), here.iov_len};
    const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got <= 0) return text;
    const auto* end = static_cast<const char*>(std::memchr(page.data(), 0, static_cast<std::size_t>(got)));
    text.append(page.data(),
                end ? static_cast<std::size_t>(end - page.data()) : static_cast<std::size_t>(got));
    if (end) return text;
    address += static_cast<std::uint64_t>(got);
  }
  return text;
}

fs::path target_of_descriptor(pid_t pid, std::uint64_t argument) {
  const int fd = static_cast<int>(argument);
  const std::string link =
      fd == AT_FDCWD ? fmt::format("/proc/{}/cwd", pid) : fmt::format("/proc/{}/fd/{}", pid, fd);
  std::error_code not_open;
  return fs::read_symlink(link, not_open);
}

SystemCall describe(pid_t pid, const Registers& r) {
  const auto number = static_cast<long>(r.orig_rax);
  const CallForm* form = form_of(number);
  if (!form) return {fmt::format("system call {}", number), {}};
  SystemCall call{form->name, {}};
  if (form->descriptor >= 0) {
    const bool anonymous = number == SYS_mmap && (argument(r, 3) & MAP_ANONYMOUS) != 0;
    if (!anonymous) call.path = target_of_descriptor(pid, argument(r, form->descriptor));
  }
  if (form->path >= 0) {
    const std::string text = text_at(pid, argument(r, form->path));
    if (form->descriptor < 0) call.path = target_of_descriptor(pid, static_cast<std::uint64_t>(AT_FDCWD));
    if (!text.empty()) call.path /= text;
  }
  call.lists_folder = number == SYS_openat && (argument(r, 2) & O_TMPFILE) == O_DIRECTORY;
  call.exchanges = number == SYS_renameat2 && (argument(r, 4) & RENAME_EXCHANGE) != 0;
  return call;
}

void load_filter() {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const long number : kHarmless) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  const sock_fprog whole{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) != 0) {
    _exit(125);
  }
}

// Runs in the child, before it executes the program.
void offer_to_tracer() {
  if (::setpgid(0, 0) != 0 || ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(125);
  // LeakSanitizer traces the process itself and cannot be traced.
  const char* options = std::getenv("ASAN_OPTIONS");
  ::setenv("ASAN_OPTIONS", fmt::format("{}:detect_leaks=0", options ? options : "").c_str(), 1);
  std::raise(SIGSTOP);
  load_filter();
}

template <class... Data>
void trace(__ptrace_request request, pid_t pid, Data... data) {
  // ESRCH: the process was killed. Its end is reported next.
  if (::ptrace(request, pid, nullptr, data...) != 0 && errno != ESRCH) {
    throw std::runtime_error(fmt::format("cannot trace a process: {}", std::strerror(errno)));
  }
}

class Tracer {
 public:
  Tracer(pid_t process, const Judge& judge) : process_(process), judge_(judge) {}

  // The exit code of the process, or minus the signal that ended it.
  int run() {
    int status = 0;
    if (::waitpid(process_, &status, __WALL) != process_ || !WIFSTOPPED(status)) {
      throw std::runtime_error("this system does not let a test trace its child");
    }
    trace(PTRACE_SETOPTIONS, process_,
          PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC |
              PTRACE_O_EXITKILL);
    trace(PTRACE_CONT, process_, 0);
    while (true) {
      const pid_t pid = ::waitpid(-process_, &status, __WALL);  // the process or one of its threads
      if (pid < 0) throw std::runtime_error("the traced process is lost");
      if (WIFSTOPPED(status)) {
        resume(pid, status);
      } else if (pid == process_) {
        if (!in_main_) throw std::runtime_error("the program never reached main()");
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
    }
  }

 private:
  void resume(pid_t pid, int status) {
    const int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_SECCOMP) {
      at_call(pid);
    } else if (signal == (SIGTRAP | 0x80)) {
      at_return(pid);
    } else {
      const bool ours = event != 0 || signal == SIGTRAP || signal == SIGSTOP;  // not passed on to the process
      trace(PTRACE_CONT, pid, ours ? 0 : signal);
    }
  }

  void at_call(pid_t pid) {
    Registers r{};
    trace(PTRACE_GETREGS, pid, &r);
    // main() begins by checking for closed standard streams.
    in_main_ = in_main_ || (r.orig_rax == SYS_fcntl && r.rdi == STDIN_FILENO && r.rsi == F_GETFD);
    const Verdict verdict = in_main_ ? judge_(describe(pid, r)) : Verdict{};
    switch (verdict.kind) {
      case Verdict::Kind::proceed:
        trace(PTRACE_CONT, pid, 0);
        break;
      case Verdict::Kind::kill:
        ::kill(process_, SIGKILL);
        break;
      case Verdict::Kind::fail:
        fail(pid, r, verdict.error);
        break;
    }
  }

  void fail(pid_t pid, Registers& r, int error) {
    const bool is_close = r.orig_rax == SYS_close, is_brk = r.orig_rax == SYS_brk;
    if (is_close || is_brk) {
      failed_ = r;
      failed_.rax = static_cast<unsigned long long>(-error);
      r.rdi = is_brk ? 0 : r.rdi;  // brk(0) only asks where the heap ends
      trace(PTRACE_SETREGS, pid, &r);
      trace(PTRACE_SYSCALL, pid, 0);
      return;
    }
    r.orig_rax = static_cast<unsigned long long>(-1);
    r.rax = static_cast<unsigned long long>(-error);
    trace(PTRACE_SETREGS, pid, &r);
    trace(PTRACE_CONT, pid, 0);
  }

  // close() closes the descriptor even if it reports an error. brk() reports a failure by returning the old
  // end.
  void at_return(pid_t pid) {
    Registers r{};
    trace(PTRACE_GETREGS, pid, &r);
    if (failed_.orig_rax == SYS_close) r.rax = failed_.rax;
    r.rdi = failed_.rdi;
    trace(PTRACE_SETREGS, pid, &r);
    trace(PTRACE_CONT, pid, 0);
  }

  pid_t process_;
  const Judge& judge_;
  bool in_main_ = false;
  Registers failed_{};  // of the call that must fail
};

}  // namespace

bool can_trace() {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(125);
    load_filter();
    _exit(0);
  }
  return wait_for(child) == 0;
}

ProcessResult run_traced(const std::vector<std::string>& arguments, const fs::path& scratch,
                         const Judge& judge) {
  const fs::path out = scratch / "stdout", err = scratch / "stderr";
  const pid_t process = start_process(arguments, out, err, offer_to_tracer);
  ProcessResult result;
  result.code = Tracer(process, judge).run();
  result.out = read_file(out, 1 << 26);
  result.err = read_file(err, 1 << 26);
  return result;
}

}  // namespace warpwright::faults
