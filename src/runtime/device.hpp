// What a kernel may know of the machine it runs on.
#pragma once

#include <cstddef>
#include <string>

#include "core/tensor.hpp"

namespace warpwright {

// Instruction sets that both the processor and the operating system offer.
struct CpuFeatures {
  bool avx2 = false;      // with FMA and F16C
  bool avx512 = false;    // F, BW, DQ, VL
  bool amx_bf16 = false;  // with AVX-512 and the kernel's permission to use tile registers
};

struct DeviceInfo {
  Device device;
  std::string name;  // "Intel(R) Xeon(R) Processor"
  CpuFeatures cpu;
  int threads = 1;  // worker threads of a CPU
  std::size_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  std::size_t memory_bytes = 0;  // of the machine; 0 where unknown
};

// The CPU of this machine, with `threads` workers (0: OMP_NUM_THREADS or every processor this process may
// use).
DeviceInfo cpu_device_info(int threads = 0);

// Bytes of memory that can still be used without swapping, within this process's limits.
std::size_t available_memory();

}  // namespace warpwright
