// Decides how many CPU threads to use, and makes sure that the system grants them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/cgroup.hpp"

namespace warpwright {

// The most threads that a user can ask for.
inline constexpr int kMaxThreads = 4096;

// The processors in the affinity mask, at least 1.
int processors_here();

// The number of threads if the user gives none, and what decided it.
struct DefaultThreads {
  enum class Source { environment, affinity, quota };

  int threads;     // at least 1
  int processors;  // in the affinity mask
  std::optional<CpuQuota> quota;
  Source source;

  std::string reason() const;  // "the affinity mask", "OMP_NUM_THREADS"
};

// OMP_NUM_THREADS if set; else the smaller of the affinity mask and the CPU quota, rounded up. Throws
// UsageError if OMP_NUM_THREADS is not a number from 1 to kMaxThreads, or a list that begins with one. `root`
// as for cgroup_cpu_quota().
DefaultThreads default_threads(const std::filesystem::path& root = "/");

// `threads`, or the default for 0. Throws UsageError outside 0 to kMaxThreads, naming `where` ("--threads").
int checked_threads(std::int64_t threads, const std::string& where);

// Starts OpenMP's workers, so that the calling thread can run parallel regions with up to `threads` threads.
// Throws Error if the system does not grant them (ulimit -u, a cgroup's limit, memory for stacks), where
// OpenMP itself would end the process. The workers stay, so calling again costs nothing. Does nothing inside
// a parallel region: regions do not nest.
void claim_threads(int threads);

// The number of threads the calling thread has claimed so far, for parallel regions outside any Context.
int claimed_threads();

}  // namespace warpwright
