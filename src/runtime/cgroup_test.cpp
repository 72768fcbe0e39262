#include "runtime/cgroup.hpp"

#include <gtest/gtest.h>

#include "runtime/test_cgroup.hpp"

namespace warpwright {
namespace {

using CpuQuotas = TestCgroup;

struct MemoryLimits : TestCgroup {
  std::size_t bytes_left() const {
    const auto left = cgroup_available_memory(folder);
    return left ? left->bytes : 0;
  }
};

TEST_F(CpuQuotas, TakeTheTightestUpTheUnifiedHierarchy) {
  unified("/a/b/c");
  EXPECT_FALSE(cgroup_cpu_quota(folder));
  put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  EXPECT_FALSE(cgroup_cpu_quota(folder));
  put("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/cpu.max", "800000 100000\n");
  ASSERT_TRUE(cgroup_cpu_quota(folder));
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 1.5);
  EXPECT_EQ(cgroup_cpu_quota(folder)->group, "/a/b");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 0.5);
  EXPECT_EQ(cgroup_cpu_quota(folder)->group, "/");
  put("sys/fs/cgroup/a/b/c/cpu.max", "10000 50000\n");
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 0.2);
  EXPECT_EQ(cgroup_cpu_quota(folder)->group, "/a/b/c");
}

TEST_F(CpuQuotas, OfVersionOneAndContainersMounts) {
  // Docker without a cgroup namespace: the mount point shows the container's group, not the root.
  put("proc/self/cgroup", "5:cpu,cpuacct:/docker/1f3a\n1:name=systemd:/docker/1f3a\n0::/docker/1f3a\n");
  put("proc/self/mountinfo",
      "40 30 0:33 /docker/1f3a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
      "41 30 0:34 /docker/1f3a /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
      "42 30 0:35 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cgroup_cpu_quota(folder));
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "320000\n");
  ASSERT_TRUE(cgroup_cpu_quota(folder));
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 3.2);
  EXPECT_EQ(cgroup_cpu_quota(folder)->group, "/docker/1f3a");
  put("sys/fs/cgroup/unified/docker/cpu.max", "200000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 2);
}

TEST_F(CpuQuotas, FilesThatSayNothingAreNone) {
  EXPECT_FALSE(cgroup_cpu_quota(folder));  // no proc
  unified("/../../elsewhere", "/here");    // a group outside the namespace
  put("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(folder)->processors, 1);
  for (const char* text :
       {"", "max", "0 100000", "-5 100000", "100000 0", "100000", "nan nan", "words in it"}) {
    put("sys/fs/cgroup/cpu.max", text);
    EXPECT_FALSE(cgroup_cpu_quota(folder)) << text;
  }
  put("proc/self/cgroup", "no colons\n0\n::\n");
  put("proc/self/mountinfo", "no dash\n - \n1 2 3 - cgroup2\n");
  EXPECT_FALSE(cgroup_cpu_quota(folder));
}

TEST_F(MemoryLimits, TakeTheLeastThatIsLeftUpTheUnifiedHierarchy) {
  unified("/system.slice/job/step");
  EXPECT_FALSE(cgroup_available_memory(folder));
  put("sys/fs/cgroup/system.slice/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/system.slice/job/step/memory.current", "500\n");
  EXPECT_FALSE(cgroup_available_memory(folder));
  put("sys/fs/cgroup/system.slice/job/memory.max", "9000\n");
  EXPECT_FALSE(cgroup_available_memory(folder));  // its use is not known
  put("sys/fs/cgroup/system.slice/job/memory.current", "2000\n");
  EXPECT_EQ(bytes_left(), 7000u);
  EXPECT_EQ(cgroup_available_memory(folder)->group, "/system.slice/job");
  put("sys/fs/cgroup/system.slice/memory.max", "20000\n");
  put("sys/fs/cgroup/system.slice/memory.current", "19000\n");
  EXPECT_EQ(bytes_left(), 1000u);
  put("sys/fs/cgroup/system.slice/memory.stat",
      "anon 400\nactive_file 300\ninactive_file 3000\nslab 1\nslab_reclaimable 1000\n");
  EXPECT_EQ(bytes_left(), 5300u);
  put("sys/fs/cgroup/system.slice/job/step/memory.max", "400\n");
  ASSERT_TRUE(cgroup_available_memory(folder));
  EXPECT_EQ(bytes_left(), 0u);
}

TEST_F(MemoryLimits, OfVersionOne) {
  put("proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/slurm/uid_1/job_2\n0::/\n");
  put("proc/self/mountinfo",
      "40 30 0:33 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
      "41 30 0:34 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
      "42 30 0:35 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.usage_in_bytes", "4096\n");
  EXPECT_EQ(bytes_left(), 9223372036854771712u - 4096u);
  put("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "8192\n");
  put("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(bytes_left(), 3192u);
  put("sys/fs/cgroup/memory/slurm/memory.stat",
      "inactive_file 1\nactive_file 2\ntotal_inactive_file 1000\ntotal_active_file 90000\n");
  EXPECT_EQ(bytes_left(), 8192u);
}

TEST_F(MemoryLimits, FilesThatSayNothingAreNone) {
  EXPECT_FALSE(cgroup_available_memory(folder));  // no proc
  unified("/");
  put("sys/fs/cgroup/memory.current", "100\n");
  for (const char* text : {"", "max", "words", "99999999999999999999999"}) {
    put("sys/fs/cgroup/memory.max", text);
    EXPECT_FALSE(cgroup_available_memory(folder)) << text;
  }
  put("sys/fs/cgroup/memory.max", "1000\n");
  put("sys/fs/cgroup/memory.stat", "active_file many\ninactive_file 50\n");
  EXPECT_EQ(bytes_left(), 900u);
}

}  // namespace
}  // namespace warpwright
