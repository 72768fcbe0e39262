// The tiles of attention's kernels on Hopper: in shared memory, in products, and on their way back to memory.
//
// A copy brings whole boxes of 64 rows, so the last tile of a sequence ends in rows of the next sequence.
// Their scores are masked. Before such a row is multiplied by a probability of 0 it is overwritten with
// zeros, so that a NaN of another sequence has no effect.
#pragma once

#include <cuda.h>

#include "ops/attention/cuda/flash.cuh"
#include "ops/cuda/hopper/products.cuh"
#include "ops/cuda/hopper/tensor_copy.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {  // named, because a compilation for an older architecture uses none of it

using namespace hopper;

inline constexpr int kBox = 64;               // rows of a group, and of a copy
inline constexpr int kBoxBytes = kBox * 128;  // 64 columns of a box
inline constexpr int kGroupThreads = 128, kGroupWarps = 4;

// A tile in shared memory consists of slabs of 64 columns, with kRows rows of 128 bytes.
template <int kRows, int kHeadSize>
struct Slabs {
  static constexpr int kSlabBytes = kRows * 128, kBytes = kHeadSize / 64 * kSlabBytes;
};

template <int kRows, int kHeadSize>
__device__ void copy_tile(std::byte* to, const CUtensorMap& map, Barrier* barrier, int head, int row,
                          int column = 0) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
#pragma unroll
    for (int box = 0; box < kRows / kBox; ++box) {
      copy_box(to + slab * Slabs<kRows, kHeadSize>::kSlabBytes + box * kBoxBytes, &map, barrier,
               column + slab * 64, head, row + box * kBox);
    }
  }
}

// A thread of a group has row(0) and row(1) = row(0) + 8 of the group's 64 rows. Element i of a sum is in
// row(i/2%2) and column 8·(i/4) + column() + i%2.
struct Lane {
  int group, thread;  // the group, and the thread in it
  __device__ Lane()
      : group(static_cast<int>(threadIdx.x) / kGroupThreads),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads) {}
  __device__ int row(int r) const { return thread / 32 * 16 + thread % 32 / 4 + 8 * r; }
  __device__ int column() const { return thread % 4 * 2; }
};

// A group clears the rows from `valid` on, for its products.
template <int kRows, int kHeadSize>
__device__ void clear_rows(std::byte* tile, int valid, const Lane& lane) {
  constexpr int kChunks = kHeadSize / 8;
  for (int index = lane.thread; index < (kRows - valid) * kChunks; index += kGroupThreads) {
    const int row = valid + index / kChunks, chunk = index % kChunks;
    *reinterpret_cast<uint4*>(tile + chunk / 8 * Slabs<kRows, kHeadSize>::kSlabBytes + row * 128 +
                              chunk % 8 * 16) = uint4{};
  }
  fence_stores_to_shared();
  named_barrier(1 + lane.group, kGroupThreads);
}

// A tile is named by the lower half of its description, in which distances count 16 bytes.
__device__ constexpr std::uint32_t described(int bytes) {
  return static_cast<std::uint32_t>(bytes) / 16;
}

// sum = a·bᵀ, with 64 rows of one tile and kCols rows of another.
template <class T, int kHeadSize, int kCols>
__device__ void multiply_rows(float (&sum)[kCols / 2], std::uint32_t a, int a_slab, std::uint32_t b,
                              int b_slab) {
#pragma unroll
  for (int step = 0; step < kHeadSize / 16; ++step) {
    const int slab = step / 4, offset = step % 4 * 2;
    multiply_tiles<T, kCols>(sum, describe_with(a + described(slab * a_slab) + offset),
                             describe_with(b + described(slab * b_slab) + offset), step > 0);
  }
}

// sum += factor·b, with kTerms rows of a tile. The description knows the slabs.
template <class T, int kHeadSize, int kTerms>
__device__ void add_product(float (&sum)[kHeadSize / 2], const std::uint32_t (&factor)[kTerms / 16][4],
                            std::uint32_t b) {
#pragma unroll
  for (int step = 0; step < kTerms / 16; ++step) {
    multiply_registers<T, kHeadSize, true>(sum, factor[step], describe_with(b + step * 128), 1);
  }
}

// Packs a sum as the left factor of a product.
template <class T, int kTerms>
__device__ void pack_factor(std::uint32_t (&factor)[kTerms / 16][4], const float (&s)[kTerms / 2]) {
#pragma unroll
  for (int i = 0; i < kTerms / 4; ++i) factor[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// A group's rows of a tile that no product needs any more, from a chunk of eight columns on. Results pass
// through them on their way to memory.
struct Passage {
  std::byte* rows;
  int slab_bytes, first_chunk = 0;

  __device__ std::byte* at(int row, int chunk) const {
    chunk += first_chunk;
    return rows + chunk / 8 * slab_bytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
  }
  template <class T, int kHeadSize>
  __device__ void put(const float (&sum)[kHeadSize / 2], const Lane& lane) const {
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; i += 2) {
      *reinterpret_cast<std::uint32_t*>(at(lane.row(i / 2 % 2), i / 4) + lane.column() * 2) =
          pack<T>(sum[i], sum[i + 1]);
    }
    __syncwarp();
  }
};

// Stores the rows of a sum.
template <class T, int kHeadSize>
__device__ void store_rows(const Rows& to, int first, int head, int valid, const float (&sum)[kHeadSize / 2],
                           const Passage& passage, const Lane& lane) {
  passage.put<T, kHeadSize>(sum, lane);
  constexpr int kChunks = kHeadSize / 8;
#pragma unroll 4
  for (int index = lane.thread % 32; index < 16 * kChunks; index += 32) {
    const int row = lane.thread / 32 * 16 + index / kChunks, chunk = index % kChunks;
    if (row >= valid) break;
    const std::byte* from = passage.at(row, chunk);
    T* at = reinterpret_cast<T*>(to.at(first + row, head)) + chunk * 8;
    if (to.aligned) {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8; ++i) at[i] = reinterpret_cast<const T*>(from)[i];
    }
  }
}

__device__ inline std::byte* align_shared(uint4* shared) {
  const std::uint32_t address = shared_address(shared);
  return reinterpret_cast<std::byte*>(shared) + ((1024 - address % 1024) % 1024);
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
