// Hopper's barriers: mbarriers in shared memory, which count arrivals and the bytes of copies; named barriers
// for some of a block's warps; barriers for clusters of blocks. Also the exchange of registers between groups
// of warps. Source: PTX ISA 9.0, "Parallel Synchronization and Communication Instructions: mbarrier", "bar",
// "barrier.cluster" and "Miscellaneous Instructions: setmaxnreg".
#pragma once

#include <cstdint>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::hopper {

using gpu::shared_address;

// A barrier in shared memory. Each phase counts arrivals and the bytes of copies.
using Barrier = std::uint64_t;

__device__ inline void initialize(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ inline void fence_initialized_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives at the barrier that another block of the cluster stores at the same shared address. This does not
// order the thread's accesses to device memory: a release at the cluster's scope would wait for them, which
// takes about a microsecond.
__device__ inline void arrive_at_block(Barrier* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
__device__ inline void arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity has ended.
__device__ inline void wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// True for one thread of the warp. All threads of the warp must call it together. Values that the whole warp
// computes are kept in uniform registers, from which the copy engine takes its operands. Values that only one
// thread computes must be moved there before each copy.
__device__ inline bool elected() {
  std::uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}\n"
      : "=r"(chosen));
  return chosen != 0;
}
// Returns the pointer, which is equal in all threads of the warp. The compiler keeps the result in a register
// instead of computing it again at each use.
template <class T>
__device__ T* kept_in_register(T* pointer) {
  return reinterpret_cast<T*>(__shfl_sync(0xffffffff, reinterpret_cast<std::uintptr_t>(pointer), 0));
}

// A barrier of `threads` threads, in whole warps. Some of the warps may only arrive, without waiting.
__device__ inline void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}
__device__ inline void arrive_at_named_barrier(int name, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}

// A barrier of all threads of the cluster that have not exited. It does not order accesses to device memory:
// a release at this scope would flush the caches.
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.relaxed;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// The two halves of cluster_barrier(): arrive, and wait for all other threads.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// Called by a group of four warps. give_registers returns each thread's registers above kCount;
// take_registers takes returned registers, up to kCount.
template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

}  // namespace warpwright::ops::hopper
