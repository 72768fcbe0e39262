// Launches kernels that begin while the kernel before them on the stream still runs. Their blocks start as
// multiprocessors become free. A block may set up its own state and read data that no kernel writes
// (weights). It must wait before it touches anything that the kernel before it reads or writes. In a captured
// graph, the overlap becomes an edge. Source: PTX ISA 9.0, "griddepcontrol"; CUDA C++ Programming Guide,
// "Programmatic Dependent Launch and Synchronization".
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "runtime/cuda/check.hpp"
#include "runtime/overlap.hpp"

namespace warpwright::ops::gpu {

// Waits until every kernel before this one on the stream has ended. Their writes are then visible. It does
// nothing if the kernel was launched in the ordinary way. The instruction itself waits only for the kernel
// directly before this one, so every kernel of a chain must call it.
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Allows the next kernel to begin as soon as all blocks of this one have started.
__device__ inline void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// True if kernels may begin early. Overlap allows this on a GPU only if it runs the code that waits.
inline bool overlaps(const Context& context) {
  return Overlap::allowed(context);
}
inline cudaLaunchAttribute overlap_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Launches a kernel that calls wait_for_kernels_before().
template <class... Parameters, class... Arguments>
void launch_overlapped(const Context& context, void (*kernel)(Parameters...), dim3 grid, int threads,
                       std::size_t shared_bytes, std::string_view name, const Arguments&... arguments) {
  cudaLaunchAttribute attribute = overlap_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream().get();
  config.attrs = &attribute;
  config.numAttrs = overlaps(context) ? 1 : 0;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace warpwright::ops::gpu
