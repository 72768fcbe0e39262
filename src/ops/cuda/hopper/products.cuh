// Products of tiles by groups of four warps (wgmma), of bf16 or fp16 with sums in fp32. Source: PTX ISA 9.0,
// "Asynchronous Warpgroup Level Matrix Instructions": "wgmma.mma_async", "Register Fragments", "Shared Memory
// Matrix Layout", "Matrix Descriptor Format".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::hopper {

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
// Keeps the compiler from moving definitions and uses of the sums across this point.
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

// The descriptor of a tile as the copy engine stores it: consecutive rows of 64 two-byte elements (128 bytes,
// swizzled by 128, aligned to 1024 bytes). Tiles with more columns consist of several such slabs.
//   - Not transposed: a row holds one index of the result, and a column one term of the sum. Eight rows take
//     1024 bytes; 16 terms take 32 bytes, which is a step of 2 in the descriptor.
//   - Transposed: a column holds one index of the result, and a row one term of the sum. A slab has 64
//     columns, and the next slab begins after slab_bytes; 16 terms take 2048 bytes, a step of 128.
// The upper half of the descriptor is the same for all tiles, so only the lower half need be computed per
// tile.
__device__ inline std::uint32_t describe_lower(const void* tile, int slab_bytes = 16) {
  return (static_cast<std::uint32_t>(slab_bytes >> 4) << 16) | ((gpu::shared_address(tile) & 0x3ffff) >> 4);
}
__device__ inline std::uint64_t describe_with(std::uint32_t lower) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = std::uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | lower;
}
__device__ inline std::uint64_t describe_tile(const void* tile, int slab_bytes = 16) {
  return describe_with(describe_lower(tile, slab_bytes));
}
template <bool kTransposed>
inline constexpr int kDescribedStep = kTransposed ? 128 : 2;  // for 16 terms

template <class T>
inline constexpr char kTypeName[] = "bf16";
template <>
inline constexpr char kTypeName<__half>[] = "f16";

// The operands of a thread's sums: SUMS_n has the constraints of n sums from sum[i] on, and NAMES_n their
// names in the instruction.
#define SUMS_8(i)                                                                               \
  "+f"(sum[i]), "+f"(sum[(i) + 1]), "+f"(sum[(i) + 2]), "+f"(sum[(i) + 3]), "+f"(sum[(i) + 4]), \
      "+f"(sum[(i) + 5]), "+f"(sum[(i) + 6]), "+f"(sum[(i) + 7])
#define SUMS_16(i) SUMS_8(i), SUMS_8((i) + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16((i) + 16)
#define SUMS_48(i) SUMS_32(i), SUMS_16((i) + 32)
#define SUMS_64(i) SUMS_32(i), SUMS_32((i) + 32)
#define SUMS_80(i) SUMS_64(i), SUMS_16((i) + 64)
#define SUMS_96(i) SUMS_64(i), SUMS_32((i) + 64)
#define SUMS_128(i) SUMS_64(i), SUMS_64((i) + 64)
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 \
  NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 \
  NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 \
  NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 \
  NAMES_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 \
  NAMES_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128                                                                                \
  NAMES_96                                                                                       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The instruction on two tiles. The arguments after `cols` are the numbers of the operands: the first is also
// the number of a thread's sums.
#define MULTIPLY_TILES(cols, A, B, ADD, TRANSPOSED_A, TRANSPOSED_B, TYPE)                   \
  asm volatile(                                                                             \
      "{\n"                                                                                 \
      ".reg .pred add;\n"                                                                   \
      "setp.ne.b32 add, %" #ADD                                                             \
      ", 0;\n"                                                                              \
      "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.%" #TYPE ".%" #TYPE " {" NAMES_##A \
      "}, %" #A ", %" #B ", add, 1, 1, %" #TRANSPOSED_A ", %" #TRANSPOSED_B                 \
      ";\n"                                                                                 \
      "}\n"                                                                                 \
      : SUMS_##A(0)                                                                         \
      : "l"(a), "l"(b), "r"(add), "n"(kTransposedA), "n"(kTransposedB), "C"(kTypeName<T>))
// The same with the first factor in four registers A0 to A3.
#define MULTIPLY_REGISTERS(cols, A0, A1, A2, A3, B, ADD, TRANSPOSED_B, TYPE)                 \
  asm volatile(                                                                              \
      "{\n"                                                                                  \
      ".reg .pred add;\n"                                                                    \
      "setp.ne.b32 add, %" #ADD                                                              \
      ", 0;\n"                                                                               \
      "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.%" #TYPE ".%" #TYPE " {" NAMES_##A0 \
      "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, %" #TRANSPOSED_B     \
      ";\n"                                                                                  \
      "}\n"                                                                                  \
      : SUMS_##A0(0)                                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposedB), "C"(kTypeName<T>))

// sum (64 × kCols) = or += a·bᵀ over 16 terms; a and b are descriptors of tiles. Element i of a thread's sum
// is in row 16·warp + lane/4 + 8·(i/2%2) and column 8·(i/4) + 2·(lane%4) + i%2.
template <class T, int kCols, bool kTransposedA = false, bool kTransposedB = false>
__device__ inline void multiply_tiles(float (&sum)[kCols / 2], std::uint64_t a, std::uint64_t b, int add) {
  static_assert(kCols == 64 || kCols == 96 || kCols == 128 || kCols == 160 || kCols == 192 || kCols == 256);
  if constexpr (kCols == 64) MULTIPLY_TILES(64, 32, 33, 34, 35, 36, 37);
  if constexpr (kCols == 96) MULTIPLY_TILES(96, 48, 49, 50, 51, 52, 53);
  if constexpr (kCols == 128) MULTIPLY_TILES(128, 64, 65, 66, 67, 68, 69);
  if constexpr (kCols == 160) MULTIPLY_TILES(160, 80, 81, 82, 83, 84, 85);
  if constexpr (kCols == 192) MULTIPLY_TILES(192, 96, 97, 98, 99, 100, 101);
  if constexpr (kCols == 256) MULTIPLY_TILES(256, 128, 129, 130, 131, 132, 133);
}

// sum (64 × kCols) = or += a·bᵀ over 16 terms; a is in registers, b is the descriptor of a tile.
template <class T, int kCols, bool kTransposedB>
__device__ inline void multiply_registers(float (&sum)[kCols / 2], const std::uint32_t (&a)[4],
                                          std::uint64_t b, int add) {
  static_assert(kCols == 32 || kCols == 64 || kCols == 128);
  if constexpr (kCols == 32) MULTIPLY_REGISTERS(32, 16, 17, 18, 19, 20, 21, 22, 23);
  if constexpr (kCols == 64) MULTIPLY_REGISTERS(64, 32, 33, 34, 35, 36, 37, 38, 39);
  if constexpr (kCols == 128) MULTIPLY_REGISTERS(128, 64, 65, 66, 67, 68, 69, 70, 71);
}

#undef MULTIPLY_TILES
#undef MULTIPLY_REGISTERS
#undef NAMES_128
#undef NAMES_96
#undef NAMES_80
#undef NAMES_64
#undef NAMES_48
#undef NAMES_32
#undef NAMES_16
#undef SUMS_128
#undef SUMS_96
#undef SUMS_80
#undef SUMS_64
#undef SUMS_48
#undef SUMS_32
#undef SUMS_16
#undef SUMS_8

}  // namespace warpwright::ops::hopper
