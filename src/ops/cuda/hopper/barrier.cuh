// Barriers of Hopper: mbarriers in shared memory, which count arrivals and the bytes of copies, named
// barriers of some of a block's warps, clusters of blocks, and registers that change hands. Source: PTX
// ISA 9.0, "Parallel Synchronization and Communication Instructions: mbarrier", "bar", "barrier.cluster" and
// "Miscellaneous Instructions: setmaxnreg".
#pragma once

#include <cstdint>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::hopper {

using gpu::shared_address;

// A barrier in shared memory: arrivals and bytes of copies, counted by phase.
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
// At the barrier that stands at the same place of another block of the cluster. Orders nothing of this
// thread's accesses to device memory (a release at the cluster's scope would wait for them, about a
// microsecond).
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
// Until the phase of that parity is over.
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

// True for one thread of a warp that is here as a whole. What a warp computes together and one thread asks
// the copy engine for stands in the registers that a warp has in common, as the engine wants it; what one
// thread computes by itself is brought there for each copy anew.
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
// The pointer, which is the same in all threads of the warp, as a number that is not computed anew wherever
// it is used.
template <class T>
__device__ T* kept_in_register(T* pointer) {
  return reinterpret_cast<T*>(__shfl_sync(0xffffffff, reinterpret_cast<std::uintptr_t>(pointer), 0));
}

// Of `threads` threads, whole warps, of which some may only arrive.
__device__ inline void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}
__device__ inline void arrive_at_named_barrier(int name, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}

// Of all threads of a cluster that have not ended. It orders no accesses to device memory: a release at this
// scope would flush the caches.
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.relaxed;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// Its two halves: a thread that is here, and one that waits for all others.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// Registers of a group of four warps: it gives back those above kCount, or takes what others gave back.
template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

}  // namespace warpwright::ops::hopper
