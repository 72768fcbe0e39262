// A factor's slab in shared memory: 64 bytes of the depth for each row (or column) of a block's tile.
//
// Memory has the depth along its rows, or across them ("transposed"). A slab keeps memory's order:
//   not transposed   kSide rows of 64 bytes
//   transposed       kDepth rows of kSide elements
// Its chunks of 16 bytes are swizzled within a row. The eight rows of a matrix that ldmatrix reads, and the
// eight chunks that a quarter of a warp writes, are then in different banks.
#pragma once

#include <cstdint>

#include "ops/cuda/mma.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::matmul::cuda::mma {

inline constexpr int kChunkBytes = 16;
inline constexpr int kSlabBytes = 64;  // of the depth
inline constexpr int kStepBytes = 32;  // of the depth, in one product of a warp
inline constexpr int kSteps = kSlabBytes / kStepBytes;

__device__ inline std::uint32_t load_word(std::uint32_t shared) {
  std::uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(shared));
  return word;
}

// A factor in memory: element (i, k), with i along the result's side.
template <class T>
struct Factor {
  const T* data;
  std::int64_t stride;
  int side, depth;
};

template <class T, int side, bool transposed>
struct Slab {
  static constexpr int kLanes = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int kDepth = kSlabBytes / static_cast<int>(sizeof(T));
  static constexpr int kRows = transposed ? kDepth : side, kCols = transposed ? side : kDepth;
  static constexpr int kRowChunks = kCols / kLanes;
  static constexpr int kBytes = side * kSlabBytes;
  // A transposed slab of fp32 is read word by word, because ldmatrix transposes elements of 16 bits only.
  static constexpr bool kByWords = transposed && sizeof(T) == 4;

  // The bits of a chunk's index that a row flips.
  static __device__ int swizzle(int row) {
    return kByWords ? row % 4 * 2 : transposed ? row % 8 : row / 2 % 4;
  }
  static __device__ int offset(int row, int chunk) {
    return (row * kRowChunks + (chunk ^ swizzle(row))) * kChunkBytes;
  }

  // One thread's copies of the slabs of a tile, one slab after the other. Its addresses only advance, because
  // their arithmetic would keep the tensor cores waiting. Terms outside the depth are zeros. Nobody stores
  // the results outside the matrix, so their factors may be zeros or the matrix's last row. aligned: the rows
  // of the matrix begin at multiples of 16 bytes. Otherwise elements are loaded one by one, and are there
  // when start() returns.
  template <int kThreads, bool aligned>
  class Copies {
   public:
    __device__ void begin(const Factor<T>& factor, int first, int k0) {
      const int thread = static_cast<int>(threadIdx.x), row = thread / kRowChunks;
      const int element = thread % kRowChunks * kLanes;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const int i = transposed ? first + element : min(first + row + n * kRowsAtOnce, factor.side - 1);
        const int k = transposed ? k0 + row + n * kRowsAtOnce : k0 + element;
        from_[n] = factor.data + (transposed ? k * factor.stride + i : i * factor.stride + k);
      }
      left_ = factor.depth - k0 - (transposed ? row : element);
      if constexpr (transposed) valid_ = max(min(factor.side - first - element, kLanes), 0);
      advance_ = transposed ? kDepth * factor.stride : kDepth;
    }
    // The next slabs are zeros.
    __device__ void end() {
      left_ = 0;
    }

    __device__ void start(std::byte* slab) {
      const int thread = static_cast<int>(threadIdx.x);
      std::byte* const to = slab + offset(thread / kRowChunks, thread % kRowChunks);
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const int count = transposed ? (n * kRowsAtOnce < left_ ? valid_ : 0) : max(min(left_, kLanes), 0);
        copy(to + n * kRowsAtOnce * kRowChunks * kChunkBytes, from_[n], count);
        from_[n] += advance_;
      }
      left_ -= kDepth;
    }

   private:
    static constexpr int kRowsAtOnce = kThreads / kRowChunks, kCount = kRows / kRowsAtOnce;
    static_assert(kThreads % kRowChunks == 0 && kRows % kRowsAtOnce == 0);
    static_assert(kRowsAtOnce % (kByWords ? 4 : 8) == 0, "all rows of a thread have the same swizzle");

    static __device__ void copy(std::byte* to, const T* from, int count) {
      if constexpr (aligned) {
        gpu::copy_async<kChunkBytes>(to, from, count * static_cast<int>(sizeof(T)));
      } else {
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          reinterpret_cast<T*>(to)[i] = i < count ? from[i] : gpu::from_float<T>(0.0f);
        }
      }
    }

    const T* from_[kCount] = {};
    std::int64_t advance_ = 0;
    int left_ = 0;   // terms of the depth from the thread's first element on
    int valid_ = 0;  // elements of a chunk inside the matrix, if transposed
  };

  // A lane's place in the slab for take(). begin: the warp's part of the side. side_first: the order of the
  // four matrices.
  struct Reader {
    int offset;
    __device__ Reader(int begin, bool side_first) {
      const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, line = lane % 8;
      const int along = side_first ? matrix % 2 : matrix / 2, deep = side_first ? matrix / 2 : matrix % 2;
      if constexpr (kByWords) {
        offset = Slab::offset(lane % 4, begin / kLanes + lane / 4 / kLanes) + lane / 4 % kLanes * 4;
      } else if constexpr (transposed) {
        offset = Slab::offset(deep * 8 + line, begin / kLanes + along);
      } else {
        offset = Slab::offset(begin + along * 8 + line, deep);
      }
    }
  };

  // Reads the part of a warp's factor that one product of 16 × 8 needs: four matrices of 8 × 16 bytes, two
  // along the side (from 16·i of the warp's part on) and two along the depth (of this step).
  static __device__ void take(std::uint32_t (&r)[4], std::uint32_t slab, const Reader& reader, int i,
                              int step, bool side_first) {
    if constexpr (kByWords) {
#pragma unroll
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int along = side_first ? matrix % 2 : matrix / 2, deep = side_first ? matrix / 2 : matrix % 2;
        const int across = (reader.offset ^ (i % 2 * 64 + along * 32)) + i / 2 * 128;
        r[matrix] = load_word(slab + across + (step * 8 + deep * 4) * kRowChunks * kChunkBytes);
      }
    } else if constexpr (transposed) {
      const int across = reader.offset ^ (i * kStepBytes);
      gpu::load_matrices_transposed(r, slab + across + step * 16 * kRowChunks * kChunkBytes);
    } else {
      gpu::load_matrices(r, slab + (reader.offset ^ (step * kStepBytes)) + i * 16 * kSlabBytes);
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (std::uint32_t& word : r) word = gpu::to_tf32(__uint_as_float(word));
    }
  }
};

}  // namespace warpwright::ops::matmul::cuda::mma
