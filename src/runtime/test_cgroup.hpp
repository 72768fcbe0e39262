// Shared by tests of what depends on cgroups: a folder that looks like a machine's root.
#pragma once

#include <string>

#include "runtime/test_folder.hpp"

namespace warpwright {

class TestCgroup : public TestFolder {
 protected:
  // A machine whose only hierarchy is version 2, with this process in `group`. The mount point shows the
  // group `inside`.
  void unified(const std::string& group, const std::string& inside = "/") const {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo",
        "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
        "35 24 0:29 " +
            inside + " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
};

}  // namespace warpwright
