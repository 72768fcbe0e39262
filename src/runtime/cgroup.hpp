// The limits that cgroups (cgroups(7), versions 1 and 2) set for this process. A group's limit also binds the
// groups in it, so each function reads this process's group and its ancestors, as far as they are mounted.
// `root` holds proc/ and the mount points.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace warpwright {

// The CPU time a cgroup may use, in processors (a fraction is possible).
struct CpuQuota {
  double processors;
  std::string group;  // its path in the hierarchy: "/docker/1f3a"
};

// The tightest CPU quota; nothing if there is none or it cannot be read.
std::optional<CpuQuota> cgroup_cpu_quota(const std::filesystem::path& root = "/");

struct MemoryLeft {
  std::size_t bytes;
  std::string group;  // whose limit is reached first
};

// The bytes left until the first memory limit is reached; nothing if there is none or it cannot be read.
// Cached files, and what else the kernel drops if memory runs short, do not count as used.
std::optional<MemoryLeft> cgroup_available_memory(const std::filesystem::path& root = "/");

}  // namespace warpwright
