#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>

#include "core/error.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/out_of_memory.hpp"
#include "runtime/stream.hpp"

namespace warpwright::cuda {

std::size_t available_memory(int index) {
  check(cudaSetDevice(index), "choosing a device");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return free;
}

std::byte* allocate(std::size_t bytes, int index, std::string_view purpose) {
  check(cudaSetDevice(index), "choosing a device");
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(fmt::format("cannot allocate {:.1f} MiB on the GPU ({:.1f} MiB are free)",
                                  static_cast<double>(bytes) / 0x1p20,
                                  static_cast<double>(available_memory(index)) / 0x1p20),
                      std::string(purpose), "use a smaller batch, sequence or model");
  }
  check(status, purpose);
  // Not on the default stream: there it would end the captures of other threads.
  const Stream own({DeviceKind::cuda, index});
  check(cudaMemsetAsync(memory, 0, bytes, own.get()), purpose);
  own.synchronize();
  return static_cast<std::byte*>(memory);
}

void release(std::byte* memory) noexcept {
  cudaFree(memory);
}

std::byte* allocate_pinned(std::size_t bytes, std::string_view purpose) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocHost(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        fmt::format("cannot pin {:.1f} MiB of the host's memory", static_cast<double>(bytes) / 0x1p20),
        std::string(purpose), "raise the limit of locked memory (ulimit -l), or free some");
  }
  check(status, purpose);
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) noexcept {
  cudaFreeHost(memory);
}

}  // namespace warpwright::cuda
