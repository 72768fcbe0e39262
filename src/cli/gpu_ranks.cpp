#include "cli/gpu_ranks.hpp"

#include <fmt/format.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cli/checks.hpp"
#include "comm/store.hpp"
#include "core/error.hpp"
#include "runtime/descriptor.hpp"
#include "runtime/device.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

constexpr int kMostGpus = 1024;
constexpr unsigned kGraceSeconds = 5;  // for ranks to end by themselves after one has failed

// 0: all.
int parsed_gpus(const std::string& value) {
  if (value == "all") return 0;
  int count = -1;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, count);
  return parsed.ec == std::errc() && parsed.ptr == end && count >= 1 && count <= kMostGpus ? count : -1;
}

std::string gpus_here(int count) {
  return count == 0 ? "no GPU" : count == 1 ? "1 GPU" : fmt::format("{} GPUs", count);
}

// The processes of the ranks, for the handlers of signals: 0 is one that has ended.
volatile pid_t ranks[kMostGpus];
volatile int started = 0;

extern "C" void pass_to_ranks(int signal) {
  for (int r = 0; r < started; ++r) {
    if (ranks[r] > 0) ::kill(ranks[r], signal == SIGALRM ? SIGKILL : signal);
  }
}

void pass_on_signals() {
  struct sigaction action {};
  action.sa_handler = pass_to_ranks;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

std::vector<std::string> own_command_line() {
  std::vector<std::string> words;
  std::string all = read_file("/proc/self/cmdline", std::size_t{1} << 26);
  for (std::size_t at = 0; at < all.size(); at = all.find('\0', at) + 1) words.emplace_back(all.c_str() + at);
  return words;
}

// torchrun's variables for this rank, after all others.
std::vector<std::string> environment_of(int rank, int count, int port) {
  std::vector<std::string> variables = {fmt::format("RANK={}", rank),
                                        fmt::format("WORLD_SIZE={}", count),
                                        fmt::format("LOCAL_RANK={}", rank),
                                        fmt::format("LOCAL_WORLD_SIZE={}", count),
                                        "MASTER_ADDR=127.0.0.1",
                                        fmt::format("MASTER_PORT={}", port),
                                        "TORCHELASTIC_USE_AGENT_STORE=False"};
  const std::size_t own = variables.size();
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const auto names_same = [&](const std::string& other) {
      return text.starts_with(std::string_view(other).substr(0, other.find('=') + 1));
    };
    if (std::none_of(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(own), names_same)) {
      variables.emplace_back(text);
    }
  }
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The child is in a group of its own: a terminal's Ctrl-C reaches it once, through this process. It is asked
// to stop if this process is killed.
pid_t start_rank(std::vector<std::string> words, std::vector<std::string> variables) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(variables);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw_system_error("start a process", "--gpus", "check the limit of processes (ulimit -u)");
  if (child > 0) return child;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() == parent) ::execve(program.c_str(), arguments.data(), environment.data());
  ::_exit(127);
}

int exit_code_of(const siginfo_t& info) {
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

// Returns the exit code of the first rank that fails, or 0.
int wait_for_ranks(int count) {
  int code = 0;
  for (int left = count; left > 0; --left) {
    siginfo_t info{};
    // The process number stays taken until the handlers have forgotten it.
    if (uninterrupted([&] { return ::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT); }) != 0) break;
    for (int r = 0; r < count; ++r) {
      if (ranks[r] == info.si_pid) ranks[r] = 0;
    }
    uninterrupted([&] { return ::waitpid(info.si_pid, nullptr, 0); });
    if (code == 0 && exit_code_of(info) != 0) {
      code = exit_code_of(info);
      ::alarm(kGraceSeconds);
    }
  }
  ::alarm(0);
  return code;
}

}  // namespace

CLI::Validator gpus_to_use() {
  return CLI::Validator(
      [](std::string& text) {
        if (parsed_gpus(text) >= 0) return std::string();
        return fmt::format("{} is neither a number of GPUs nor all", quote(text));
      },
      "N|all");
}

int count_gpus(const std::string& value) {
  const int asked = parsed_gpus(value), here = cuda_device_count();
  if (here == 0) device_info({DeviceKind::cuda, 0});  // its Error says why
  if (asked > here) {
    throw Error(fmt::format("asks for {} GPUs, and this machine has {}", asked, gpus_here(here)), "--gpus",
                "give fewer, or all");
  }
  return asked == 0 ? here : asked;
}

Device device_of_rank(const Launch& launch, Device asked) {
  if (launch.ranks == 1) return asked;
  if (asked.kind == DeviceKind::cpu) {
    if (launch.by == Launch::By::mpi) return asked;
    throw UsageError(fmt::format("is cpu, and {} ranks on CPUs need MPI", launch.ranks), "--device",
                     "start them with mpirun, or train on GPUs with --device cuda");
  }
  const int here = cuda_device_count(), needed = std::max(launch.local_ranks, launch.local_rank + 1);
  // A launcher may show each rank its own GPU alone.
  if (here == 1) return {DeviceKind::cuda, 0};
  if (here > 0 && launch.local_rank >= here) {
    throw Error(fmt::format("this machine has {} for {} ranks", gpus_here(here), needed), "--device",
                "start one rank for each GPU");
  }
  return {DeviceKind::cuda, launch.local_rank};
}

int run_on_gpus(int gpus) {
  const std::vector<std::string> words = own_command_line();
  const int port = free_local_port();
  pass_on_signals();
  for (int r = 0; r < gpus; ++r) {
    ranks[r] = start_rank(words, environment_of(r, gpus, port));
    started = r + 1;
  }
  return wait_for_ranks(gpus);
}

}  // namespace warpwright::cli
