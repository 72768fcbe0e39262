#include "cli/gpu_ranks.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/checks.hpp"
#include "cli/signals.hpp"
#include "comm/store.hpp"
#include "core/error.hpp"
#include "runtime/device.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

constexpr int kMostGpus = 1024;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace(5);  // for ranks to end by themselves after one has failed

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

// Throws the Error that says why there is no GPU.
void throw_no_gpu() {
  try {
    device_info({DeviceKind::cuda, 0});
  } catch (const Error& error) {
    throw Error(error.problem(), "--gpus", error.remedy());
  }
}

// Signals, from their handler to the loop that waits for the ranks.
int noted[2] = {-1, -1};

extern "C" void note_signal(int signal) {
  const int before = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = ::write(noted[1], &number, 1);
  errno = before;
}

void note_signals() {
  if (noted[0] < 0 && ::pipe2(noted, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw_system_error("make a pipe", "--gpus", "check the limit of open files (ulimit -n)");
  }
  for (const int signal : kEndingSignals) handle_signal(signal, note_signal);
  std::signal(SIGCHLD, SIG_DFL);  // it may be ignored, which would hide the end of a rank
  handle_signal(SIGCHLD, note_signal);
}

constexpr Clock::time_point kNever = Clock::time_point::max();

// Waits for the next signal. Returns 0 at the end of the time.
int next_signal(Clock::time_point end) {
  for (;;) {
    unsigned char number = 0;
    if (::read(noted[0], &number, 1) == 1) return number;
    int milliseconds = -1;
    if (end != kNever) {
      const auto left = end - Clock::now();
      if (left.count() <= 0) return 0;
      milliseconds = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
    }
    pollfd waiting{noted[0], POLLIN, 0};
    ::poll(&waiting, 1, milliseconds);
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

// The child is in a group of its own: a terminal's Ctrl-C reaches it once, through this process. It may write
// to the terminal nevertheless, and is asked to stop if this process is killed.
pid_t start_rank(std::vector<std::string> words, std::vector<std::string> variables) {
  const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(variables);
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe");  // its name is for `ps`
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw_system_error("start a process", "--gpus", "check the limit of processes (ulimit -u)");
  if (child > 0) return child;
  ::setpgid(0, 0);
  ::signal(SIGTTOU, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() == parent) ::execve(program.c_str(), arguments.data(), environment.data());
  constexpr std::string_view kLine = "warpwright: a rank's program cannot be started; check /proc\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  ::_exit(127);
}

void pass_to(const std::vector<pid_t>& ranks, int signal) {
  for (const pid_t rank : ranks) {
    if (rank > 0) ::kill(rank, signal);
  }
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns the exit code of the first rank that fails, or 0. Other children of this process are none of its
// business: a container's first process gets those of others.
int wait_for_ranks(std::vector<pid_t> ranks) {
  int code = 0;
  Clock::time_point end = kNever;  // of the time in which ranks may end by themselves
  while (std::ranges::any_of(ranks, [](pid_t rank) { return rank > 0; })) {
    const int signal = next_signal(end);
    if (signal != SIGCHLD) pass_to(ranks, signal == 0 ? SIGKILL : signal);
    if (signal == 0) end = kNever;
    for (pid_t& rank : ranks) {
      int status = 0;
      const pid_t ended = rank > 0 ? ::waitpid(rank, &status, WNOHANG) : 0;
      if (ended == 0) continue;
      rank = 0;
      const int own = ended < 0 ? EXIT_FAILURE : exit_code_of(status);
      if (code != 0 || own == 0) continue;
      code = own;
      end = Clock::now() + kGrace;
    }
  }
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
  if (here == 0) throw_no_gpu();
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
  note_signals();
  std::vector<pid_t> ranks;
  for (int r = 0; r < gpus; ++r) ranks.push_back(start_rank(words, environment_of(r, gpus, port)));
  return wait_for_ranks(std::move(ranks));
}

}  // namespace warpwright::cli
