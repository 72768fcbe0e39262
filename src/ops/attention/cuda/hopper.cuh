// Hopper's own instructions: the tensor copy engine, its barriers, and products by four warps at once.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" and "cp.async.bulk.tensor".
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/attention/cuda/instructions.cuh"

namespace warpwright::ops::attention::cuda {

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
__device__ inline void arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
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

// A box of a (row, head, column) view into shared memory, counted by the barrier.
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

// Ordinary stores to shared memory become visible to products.
__device__ inline void fence_stores_before_products() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Returns when all but the last kPending groups of products are done.
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving definitions and uses of sums across what stands before and behind it.
template <int kCount>
__device__ inline void pin(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
template <int kSums, int kCount>
__device__ inline void pin(float (&sums)[kSums][kCount]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) pin(sums[i]);
}

// A tile of rows of 64 two-byte elements as the copy engine leaves it (128-byte swizzle, 1024-byte aligned):
// eight rows follow each other in 1024 bytes. Valid both where the rows are the sum's index (a step along the
// sum is 32 bytes) and where they are the sum itself (a step is 16 rows, 2048 bytes).
__device__ inline std::uint64_t describe_tile(const void* tile) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = std::uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | (std::uint64_t{1} << 16) | ((shared_address(tile) & 0x3ffff) >> 4);
}

// sum (64×64) = or += a·bᵀ over 16 elements, of rows of two tiles.
template <class T>
__device__ void multiply_tiles(float (&sum)[32], std::uint64_t a, std::uint64_t b, int add);
template <>
__device__ inline void multiply_tiles<__nv_bfloat16>(float (&sum)[32], std::uint64_t a, std::uint64_t b,
                                                     int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
        "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
        "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
        "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]),
        "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
      : "l"(a), "l"(b), "r"(add));
}
template <>
__device__ inline void multiply_tiles<__half>(float (&sum)[32], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
        "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
        "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
        "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]),
        "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
      : "l"(a), "l"(b), "r"(add));
}

// sum (64×64) = or += a·b over 16 rows of a tile, a in registers.
template <class T>
__device__ void multiply_registers(float (&sum)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add);
template <>
__device__ inline void multiply_registers<__nv_bfloat16>(float (&sum)[32], const std::uint32_t (&a)[4],
                                                         std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n"
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
        "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
        "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
        "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]),
        "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
template <>
__device__ inline void multiply_registers<__half>(float (&sum)[32], const std::uint32_t (&a)[4],
                                                  std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n"
      "}\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
        "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
        "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
        "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]),
        "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

}  // namespace warpwright::ops::attention::cuda
