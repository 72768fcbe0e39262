// The CUDA functions that runtime/ needs: from cuda/ in a build with CUDA, else from cuda/absent.cpp.
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/ceiling.hpp"
#include "runtime/device.hpp"

namespace warpwright::cuda {

int device_count();
DeviceInfo device_info(int index);  // throws Error
std::string driver_version();

std::size_t available_memory(int index);

// Device memory, zero at the start.
std::byte* allocate(std::size_t bytes, int index, std::string_view purpose);
void release(std::byte* memory) noexcept;

// Host memory that a GPU can copy from and to on its own. Its contents are undefined.
std::byte* allocate_pinned(std::size_t bytes, std::string_view purpose);
void release_pinned(std::byte* memory) noexcept;

// See runtime/ceiling.hpp.
PeakFlops measure_peak_flops(const DeviceInfo& device, double seconds);
double measure_mma_flops(const DeviceInfo& device, DType dtype, double seconds);
Bandwidth measure_bandwidth(const DeviceInfo& device, std::size_t working_set, double seconds);

}  // namespace warpwright::cuda
