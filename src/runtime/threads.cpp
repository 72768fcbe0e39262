#include "runtime/threads.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/error.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

int environment_threads(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const std::size_t begin = std::min(text.find_first_not_of(kBlank), text.size());
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), threads);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::size_t after = rest.find_first_not_of(kBlank);
  // A list has a number per level of nested regions; we have one level.
  const bool whole = after == std::string_view::npos || rest[after] == ',';
  if (error != std::errc() || !whole || threads < 1 || threads > kMaxThreads) {
    throw UsageError(fmt::format("'{}' is not a number of threads", text), "OMP_NUM_THREADS",
                     fmt::format("use 1 to {}, or unset it", kMaxThreads));
  }
  return threads;
}

// The stack size the environment sets for OpenMP's threads ("100M"; "2048" is in KiB); 0 if it sets none, or
// not a valid one.
std::size_t openmp_stack_bytes() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    const char* text = std::getenv(name);
    if (!text) continue;
    char* end = nullptr;
    errno = 0;
    const unsigned long long number = std::strtoull(text, &end, 10);
    while (*end == ' ' || *end == '\t') ++end;
    const std::size_t unit = std::string_view("bkmg").find(
        static_cast<char>(std::tolower(static_cast<unsigned char>(*end ? *end : 'k'))));
    std::size_t bytes = 0;
    const bool good = errno == 0 && unit != std::string_view::npos &&
                      !__builtin_mul_overflow(number, std::size_t{1} << (10 * unit), &bytes);
    if (good && bytes >= static_cast<std::size_t>(PTHREAD_STACK_MIN)) return bytes;
  }
  return 0;
}

// Threads that wait until all of them have been started.
class WaitingThreads {
 public:
  // Starts up to `count` threads and returns how many started; `error` is that of the first that failed.
  int start(int count, int& error) {
    threads_.reserve(static_cast<std::size_t>(count));
    ids_.reserve(static_cast<std::size_t>(count));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (const std::size_t bytes = openmp_stack_bytes(); bytes > 0)
      pthread_attr_setstacksize(&attributes, bytes);
    const std::scoped_lock held(gate_);
    while (started() < count) {
      pthread_t thread{};
      error = pthread_create(&thread, &attributes, &WaitingThreads::wait, this);
      if (error != 0) break;
      threads_.push_back(thread);
    }
    pthread_attr_destroy(&attributes);
    return started();
  }
  WaitingThreads() = default;
  WaitingThreads(const WaitingThreads&) = delete;
  ~WaitingThreads() {
    for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
    for (const pid_t id : ids_) wait_until_gone(id);
  }

 private:
  int started() const { return static_cast<int>(threads_.size()); }
  static void* wait(void* self) {
    auto* threads = static_cast<WaitingThreads*>(self);
    const std::scoped_lock held(threads->gate_);
    threads->ids_.push_back(static_cast<pid_t>(syscall(SYS_gettid)));
    return nullptr;
  }
  // A joined thread counts towards the limits until the kernel has taken it away, some microseconds later.
  static void wait_until_gone(pid_t id) {
    constexpr int kTurns = 100000;
    for (int i = 0; i < kTurns && syscall(SYS_tgkill, getpid(), id, 0) == 0; ++i) sched_yield();
  }

  std::mutex gate_;
  std::vector<pthread_t> threads_;
  std::vector<pid_t> ids_;
};

thread_local int claimed = 1;  // threads of a parallel region that this thread can have

}  // namespace

std::string DefaultThreads::reason() const {
  if (source == Source::environment) return "OMP_NUM_THREADS";
  if (source == Source::affinity) return "the affinity mask";
  return fmt::format("the CPU quota of cgroup {}", quota->group);
}

int processors_here() {
  return std::max(1, omp_get_num_procs());
}

DefaultThreads default_threads(const fs::path& root) {
  DefaultThreads found{1, processors_here(), cgroup_cpu_quota(root), DefaultThreads::Source::affinity};
  found.threads = std::min(found.processors, kMaxThreads);
  if (found.quota && std::ceil(found.quota->processors) < found.threads) {
    found.threads = std::max(1, static_cast<int>(std::ceil(found.quota->processors)));
    found.source = DefaultThreads::Source::quota;
  }
  if (const char* wanted = std::getenv("OMP_NUM_THREADS"); wanted && *wanted) {
    found.threads = environment_threads(wanted);
    found.source = DefaultThreads::Source::environment;
  }
  return found;
}

int checked_threads(std::int64_t threads, const std::string& where) {
  if (threads < 0 || threads > kMaxThreads) {
    throw UsageError(fmt::format("{} is not a number of threads", threads), where,
                     fmt::format("use 1 to {}, or 0 for the default", kMaxThreads));
  }
  return threads > 0 ? static_cast<int>(threads) : default_threads().threads;
}

void claim_threads(int threads) {
  if (threads <= claimed || omp_in_parallel()) return;
  int error = 0, started = 0;
  {
    WaitingThreads waiting;
    started = 1 + waiting.start(threads - 1, error);
  }
  if (started < threads) {
    throw Error(fmt::format("the system grants {} of {} threads: {}", started, threads, std::strerror(error)),
                "CPU threads", "use fewer (--threads, OMP_NUM_THREADS), or raise the limit (ulimit -u)");
  }
#pragma omp parallel num_threads(threads)
  asm volatile("" ::: "memory");  // or the compiler removes the region as empty
  claimed = threads;
}

int claimed_threads() {
  return omp_in_parallel() ? 1 : claimed;
}

}  // namespace warpwright
