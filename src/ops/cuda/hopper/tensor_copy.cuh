// Hopper's tensor copy engine. It copies boxes of a tensor from device memory to shared memory, where a
// barrier counts the bytes, and back, where the starting thread waits for groups of copies. The part of a box
// that lies outside the tensor is read as zeros and is not written. Source: PTX ISA 9.0, "Data Movement and
// Conversion Instructions: cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor" and "Async
// proxy".
#pragma once

#include <cuda.h>

#include "ops/cuda/hopper/barrier.cuh"

namespace warpwright::ops::hopper {

// Copies a box of a (row, column) matrix.
__device__ inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}
// Copies the box to the same shared address in each block of the cluster that the mask selects. Each block's
// own barrier counts the bytes.
__device__ inline void copy_box_to_blocks(void* to, const CUtensorMap* map, Barrier* barrier, int column,
                                          int row, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}
// Copies a box of a (row, head, column) view.
__device__ inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int column, int head,
                                int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
      : "memory");
}
// Copies a box of a (sequence, head, row, column) view.
__device__ inline void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int column, int row,
                                int head, int sequence) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], [%2];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(sequence)
      : "memory");
}
// Copies contiguous bytes. The address is aligned to 16 bytes, and the size is a multiple of 16.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Copies contiguous bytes of this block's shared memory to another block of the cluster. The other block's
// barrier counts them. `to` and `barrier` are addresses in this block; the same addresses are used in the
// other block. The source must not change until the other block has received the bytes.
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

// Copies a box from shared memory to device memory.
__device__ inline void store_box(const CUtensorMap* map, const void* from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
               "r"(shared_address(from)), "r"(column), "r"(row)
               : "memory");
}
// Adds a box, element by element, to the tensor in device memory (fp32; subnormal numbers count as zeros).
__device__ inline void add_box(const CUtensorMap* map, const void* from, int column, int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Waits until all but the last kPending groups of this thread's stores have read their shared memory.
template <int kPending>
__device__ inline void wait_until_stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

// Makes this thread's ordinary stores to shared memory visible to the copy engine and to wgmma. A barrier
// after it does the same for the stores of all threads that called it.
__device__ inline void fence_stores_to_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

}  // namespace warpwright::ops::hopper
