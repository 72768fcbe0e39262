#include "runtime/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// This process's group, or an ancestor of it.
struct Cgroup {
  bool unified;      // version 2
  fs::path folder;   // where its files are
  std::string name;  // its path in the hierarchy
};

// A mount of a hierarchy that may have the controller.
struct CgroupMount {
  bool unified;
  fs::path inside;  // the group visible at the mount point
  fs::path point;
};

bool has_word(const std::string& words, std::string_view word) {  // "cpu" in "rw,cpu,cpuacct"
  std::istringstream stream(words);
  for (std::string item; std::getline(stream, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// proc_pid_mountinfo(5): "36 35 98:0 ROOT MOUNT-POINT OPTIONS FIELD… - TYPE SOURCE SUPER-OPTIONS".
std::vector<CgroupMount> cgroup_mounts(const fs::path& root, std::string_view controller) {
  std::vector<CgroupMount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string id, parent, device, inside, point, type, source, options;
    std::istringstream(line) >> id >> parent >> device >> inside >> point;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    const bool unified = type == "cgroup2";
    if (unified || (type == "cgroup" && has_word(options, controller))) {
      mounts.push_back({unified, inside, point});
    }
  }
  return mounts;
}

// This process's group in that hierarchy: "0::/GROUP" or "4:cpu,cpuacct:/GROUP".
fs::path own_group(const fs::path& root, std::string_view controller, bool unified) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? line.compare(0, first, "0") == 0 && controllers.empty()
                : has_word(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return "/";
}

// The own group in each hierarchy, and its ancestors.
std::vector<Cgroup> own_groups(const fs::path& root, std::string_view controller) {
  std::vector<Cgroup> groups;
  for (const CgroupMount& mount : cgroup_mounts(root, controller)) {
    const fs::path group = own_group(root, controller, mount.unified);
    fs::path below = group.lexically_relative(mount.inside);
    // The group lies outside the mount: a container sees its own group at the mount point.
    if (below.empty() || *below.begin() == ".." || below == ".") below.clear();
    for (;; below = below.parent_path()) {
      groups.push_back({mount.unified, root / mount.point.relative_path() / below,
                        (below.empty() ? mount.inside : mount.inside / below).string()});
      if (below.empty()) break;
    }
  }
  return groups;
}

// The quota of one group, in processors.
std::optional<double> quota_of(const Cgroup& group) {
  double quota = 0, period = 0;
  if (group.unified) {  // "max 100000" or "150000 100000"
    std::ifstream file(group.folder / "cpu.max");
    if (!(file >> quota >> period)) return {};
  } else {  // -1 without a quota
    std::ifstream quota_file(group.folder / "cpu.cfs_quota_us");
    std::ifstream period_file(group.folder / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return {};
  }
  if (!(quota > 0) || !(period > 0)) return {};
  return quota / period;
}

// The bytes of cached files, and of what else the kernel gives back, in one group and those below it.
std::size_t cached_bytes(const Cgroup& group) {
  const std::string_view active = group.unified ? "active_file" : "total_active_file";
  const std::string_view inactive = group.unified ? "inactive_file" : "total_inactive_file";
  std::ifstream file(group.folder / "memory.stat");
  std::size_t bytes = 0, sum = 0;
  for (std::string key; file >> key >> bytes;) {
    if (key == active || key == inactive || key == "slab_reclaimable") sum += bytes;
  }
  return sum;
}

// The bytes left in one group.
std::optional<std::size_t> memory_left_in(const Cgroup& group) {
  std::ifstream limit_file(group.folder / (group.unified ? "memory.max" : "memory.limit_in_bytes"));
  std::ifstream usage_file(group.folder / (group.unified ? "memory.current" : "memory.usage_in_bytes"));
  std::size_t limit = 0, usage = 0;  // without a limit "max", or in version 1 a number beyond any memory
  if (!(limit_file >> limit) || !(usage_file >> usage)) return {};
  const std::size_t used = usage - std::min(usage, cached_bytes(group));
  return limit - std::min(limit, used);
}

// The least limit that `limit_of` finds in the own groups and their ancestors, and its group.
template <class Limit, class LimitOf>
std::optional<Limit> tightest(const fs::path& root, std::string_view controller, const LimitOf& limit_of) {
  const Cgroup* binding = nullptr;
  decltype(limit_of(*binding)) least;
  const std::vector<Cgroup> groups = own_groups(root, controller);
  for (const Cgroup& group : groups) {
    const auto limit = limit_of(group);
    if (limit && (!least || *limit < *least)) least = limit, binding = &group;
  }
  if (!least) return {};
  return Limit{*least, binding->name};
}

}  // namespace

std::optional<CpuQuota> cgroup_cpu_quota(const fs::path& root) {
  return tightest<CpuQuota>(root, "cpu", quota_of);
}

std::optional<MemoryLeft> cgroup_available_memory(const fs::path& root) {
  return tightest<MemoryLeft>(root, "memory", memory_left_in);
}

}  // namespace warpwright
