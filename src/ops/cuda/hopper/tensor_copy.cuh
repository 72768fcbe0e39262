// Hopper's tensor copy engine: boxes of a tensor in device memory to shared memory, counted by a barrier, and
// back, counted in groups by the thread that starts them. What of a box lies outside the tensor is read as
// zeros and not written.
// Source: PTX ISA 9.0, "Data Movement and Conversion Instructions: cp.async.bulk", "cp.async.bulk.tensor",
// "cp.reduce.async.bulk.tensor" and "Async proxy".
#pragma once

#include <cuda.h>

#include "ops/cuda/hopper/barrier.cuh"

namespace warpwright::ops::hopper {

// A box of a (row, column) matrix.
__device__ inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}
// The same box to the same place in each block of the cluster that the mask names, counted by each one's
// barrier.
__device__ inline void copy_box_to_blocks(void* to, const CUtensorMap* map, Barrier* barrier, int column,
                                          int row, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}
// A box of a (row, head, column) view.
__device__ inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int column, int head,
                                int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
      : "memory");
}
// Contiguous bytes, 16-byte aligned and a multiple of 16.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Contiguous bytes of this block's shared memory to another block of the cluster, which counts them at its
// barrier; the place and the barrier there are given as this block's own. This block's bytes must stay as
// they are until the other has them.
__device__ inline void copy_to_block(void* to, const void* from, int bytes, Barrier* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 there, counter;\n"
      "mapa.shared::cluster.u32 there, %0, %4;\n"
      "mapa.shared::cluster.u32 counter, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [counter];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(shared_address(from)), "r"(bytes), "r"(shared_address(barrier)), "r"(block)
      : "memory");
}

// A box from shared memory.
__device__ inline void store_box(const CUtensorMap* map, const void* from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
               "r"(shared_address(from)), "r"(column), "r"(row)
               : "memory");
}
// Added, element by element, to what stands there (fp32; subnormal numbers count as zeros).
__device__ inline void add_box(const CUtensorMap* map, const void* from, int column, int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Until shared memory has been read by all but the last kPending groups of stores of this thread.
template <int kPending>
__device__ inline void wait_until_stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

// What this thread has stored to shared memory by ordinary instructions is there for the copy engine and for
// products; other threads' behind the barrier that follows.
__device__ inline void fence_stores_to_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

}  // namespace warpwright::ops::hopper
