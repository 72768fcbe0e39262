#include "runtime/device.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "runtime/cgroup.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

// Linux grants AMX's tile data (state component 18) per process, on request: arch_prctl(2), since Linux 5.16.
bool request_amx_permission() {
  constexpr long kRequestXcompPermission = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kRequestXcompPermission, kXfeatureTileData) == 0;
}

CpuFeatures detect_cpu_features() {
  CpuFeatures features;
  // __builtin_cpu_supports also checks that the operating system saves the registers (XGETBV).
  features.avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // CPUID leaf 7: ECX bit 11 is AVX512_VNNI; EDX bit 22 is AMX-BF16, bit 23 AVX512_FP16, bit 24 AMX-TILE, bit
  // 25 AMX-INT8. In subleaf 1, EAX bit 4 is AVX-VNNI, bit 5 AVX512_BF16 (Intel SDM volume 2A).
  if (features.avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const bool tiles = (edx & (1u << 24)) && request_amx_permission();
    features.amx_bf16 = tiles && (edx & (1u << 22));
    features.amx_int8 = tiles && (edx & (1u << 25));
    features.avx512_fp16 = edx & (1u << 23);
    features.avx512_vnni = ecx & (1u << 11);
  }
  if (features.avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
    features.avx_vnni = eax & (1u << 4);
    features.avx512_bf16 = features.avx512 && (eax & (1u << 5));
    features.amx_int8 = features.amx_int8 && features.avx512_bf16;  // its kernels use both
  }
  return features;
}

std::string cpu_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "x86-64 CPU";
}

std::size_t cache_bytes(int name, std::size_t fallback) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : fallback;
}

// The largest size if it is not known.
std::size_t machine_available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream fields(line);
    std::string key;
    std::size_t kib = 0;
    if (fields >> key >> kib && key == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<std::size_t>::max();
}

}  // namespace

DeviceInfo cpu_device_info(int threads) {
  static const CpuFeatures features = detect_cpu_features();
  DeviceInfo info;
  info.name = cpu_name();
  info.cpu = features;
  info.threads = checked_threads(threads, "threads");
  info.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  info.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
  info.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 8 << 20);
  info.memory_bytes =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return info;
}

DeviceInfo device_info(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return cpu_device_info(threads);
  DeviceInfo info = cuda::device_info(device.index);
  info.threads = cpu_device_info(threads).threads;
  return info;
}

int cuda_device_count() {
  return cuda::device_count();
}

std::string gpu_driver_version() {
  return cuda::driver_version();
}

std::size_t available_memory(Device device) {
  if (device.kind == DeviceKind::cuda) return cuda::available_memory(device.index);
  const std::size_t machine = machine_available_memory();
  const auto group = cgroup_available_memory();
  return group ? std::min(machine, group->bytes) : machine;
}

}  // namespace warpwright
