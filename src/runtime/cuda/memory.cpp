#include <cuda_runtime.h>
#include <fmt/format.h>

#include <memory>
#include <string>

#include "core/error.hpp"
#include "core/human_bytes.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/out_of_memory.hpp"
#include "runtime/stream.hpp"

namespace warpwright::cuda {

std::size_t available_memory(int index) {
  const CurrentDevice current({DeviceKind::cuda, index});
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return free;
}

std::byte* allocate(std::size_t bytes, int index, std::string_view purpose) {
  const Device device{DeviceKind::cuda, index};
  const CurrentDevice current(device);
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        fmt::format("cannot allocate {} on the GPU ({} are free)", human_bytes(static_cast<double>(bytes)),
                    human_bytes(static_cast<double>(available_memory(index)))),
        std::string(purpose), "use a smaller batch, sequence or model");
  }
  check(status, purpose);
  std::unique_ptr<std::byte, decltype(&release)> memory(static_cast<std::byte*>(address), &release);
  // Not on the default stream: there it would end the captures of other threads.
  const Stream own(device);
  check(cudaMemsetAsync(address, 0, bytes, own.get()), purpose);
  own.synchronize();
  return memory.release();
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
        fmt::format("cannot pin {} of the host's memory", human_bytes(static_cast<double>(bytes))),
        std::string(purpose), "raise the limit of locked memory (ulimit -l), or free some");
  }
  check(status, purpose);
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) noexcept {
  cudaFreeHost(memory);
}

}  // namespace warpwright::cuda
