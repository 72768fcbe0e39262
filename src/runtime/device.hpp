// Describes the machine to the kernels that run on it.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "core/tensor.hpp"

namespace warpwright {

class TunedTable;

// Operation ("matmul" or "matmul.dw") → the choice that the user forces, a variant or a variant and its
// configuration.
using ForcedChoices = std::map<std::string, std::string>;

// Instruction sets that both the processor and the operating system offer.
struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx_vnni = false;     // with AVX2
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_vnni = false;  // with AVX-512
  bool avx512_bf16 = false;  // with AVX-512
  bool avx512_fp16 = false;  // with AVX-512
  bool amx_bf16 = false;     // with AVX-512 and the kernel's permission to use tile registers
  bool amx_int8 = false;     // the same, with AVX512_BF16

  // True if vdpbf16ps does more multiply-adds per second than fp32's instructions. A Zen 4 does twice as
  // many with it. Intel's processors with AMX do half as many. They all have AVX512_FP16, which Zen 4 and Zen
  // 5 lack. AMX's own bits would not do, because many hypervisors hide them.
  bool fast_bf16_dot() const { return avx512_bf16 && !avx512_fp16; }
};

struct GpuFeatures {
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t shared_bytes_per_block = 0;  // the most that one block may ask for
  std::size_t shared_bytes_per_multiprocessor = 0;
  bool hopper_code = true;  // this build has code for Hopper (sm_90a)
  // True if the GPU runs the code for Hopper, which alone has clusters and kernels that begin early. Later
  // GPUs, and all GPUs in a build without that code, run the code for compute capability 8.
  bool runs_hopper_code() const { return major == 9 && hopper_code; }
};

struct DeviceInfo {
  Device device;
  std::string name;   // "Intel(R) Xeon(R) Processor"
  CpuFeatures cpu;    // of a CPU
  GpuFeatures gpu;    // of a GPU
  bool tf32 = false;  // fp32 products may round their factors to tf32, on a GPU that has it
  int threads = 1;    // worker threads of a CPU
  std::size_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  std::size_t memory_bytes = 0;           // of the machine; 0 where unknown
  const TunedTable* tuned = nullptr;      // choices measured on it (runtime/tuned.hpp); null: none
  const ForcedChoices* forced = nullptr;  // choices that the user forced; null: none
};

// The CPU of this machine, with `threads` workers (0: default_threads(), runtime/threads.hpp).
DeviceInfo cpu_device_info(int threads = 0);

// Describes that device. Throws Error if the build or the machine has no such device, or if this build has no
// code for it. `threads` as above.
DeviceInfo device_info(Device device, int threads = 0);

// GPUs that CUDA offers here; 0 if the build has no CUDA, or the machine no driver or no GPU.
int cuda_device_count();

// "580.159.04", as NVIDIA's management library says; "" if there is no driver.
std::string gpu_driver_version();

// Bytes of the device's memory that can still be used: of a CPU's without swapping and within this process's
// limits.
std::size_t available_memory(Device device = {});

}  // namespace warpwright
