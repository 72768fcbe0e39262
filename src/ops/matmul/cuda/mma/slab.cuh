// A factor's slab in shared memory: 64 or 128 bytes of the depth for each row (or column) of a block's
// tile.
//
// Memory has the depth along its rows, or across them ("transposed"). A slab keeps memory's order:
//   not transposed   a row of slab_bytes for each of the side's elements
//   transposed       kDepth rows, each with all of the side's elements
// Its chunks of 16 bytes are swizzled within a row. The eight rows of a matrix that ldmatrix reads, and the
// eight chunks that a quarter of a warp writes, are then in different banks.
#pragma once

#include <cstdint>

#include "ops/cuda/cp_async.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::matmul::cuda::mma {

inline constexpr int kChunkBytes = 16;
inline constexpr int kStepBytes = 32;  // of the depth, in one product of a warp

__device__ inline std::uint32_t load_word(std::uint32_t shared) {
  std::uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(shared));
  return word;
}

__device__ inline void store_chunk(std::uint32_t shared, const uint4& chunk) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(chunk.x), "r"(chunk.y),
               "r"(chunk.z), "r"(chunk.w)
               : "memory");
}

__device__ inline void store_two(std::uint32_t shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
__device__ inline void load_four(float (&four)[4], std::uint32_t shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
               : "r"(shared)
               : "memory");
}

// A factor in memory: element (i, k), with i along the result's side.
template <class T>
struct Factor {
  const T* data;
  std::int64_t stride;
  int side, depth;
};

template <class T, int side, int slab_bytes, bool transposed>
struct Slab {
  static constexpr int kLanes = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int kDepth = slab_bytes / static_cast<int>(sizeof(T));
  static constexpr int kRows = transposed ? kDepth : side, kCols = transposed ? side : kDepth;
  static constexpr int kRowChunks = kCols / kLanes;
  static constexpr int kBytes = side * slab_bytes;
  // A transposed slab of fp32 is read word by word, because ldmatrix transposes elements of 16 bits only.
  static constexpr bool kByWords = transposed && sizeof(T) == 4;

  // The bits of a chunk's index that a row flips. Eight rows of a matrix have 64 bytes each, so two of them
  // share the banks, or at least 128.
  static constexpr __device__ int swizzle(int row) {
    return kByWords ? row % 4 * 2 : kRowChunks == 4 ? row / 2 % 4 : row % 8;
  }
  static __device__ int offset(int row, int chunk) {
    return (row * kRowChunks + (chunk ^ swizzle(row))) * kChunkBytes;
  }

  // One thread's copies of the slabs of a tile, one slab after the other. Its addresses only advance, because
  // their arithmetic would keep the tensor cores waiting. Elements outside the matrix become zeros. aligned:
  // the rows of the matrix begin at multiples of 16 bytes. Otherwise elements are loaded one by one, and are
  // there when start() returns.
  template <int kThreads, bool aligned>
  class Copies {
   public:
    __device__ void begin(const Factor<T>& factor, int first, int k0) {
      const int thread = static_cast<int>(threadIdx.x), row = thread / kRowChunks;
      const int element = thread % kRowChunks * kLanes;
      const std::int64_t i = first + (transposed ? element : row), k = k0 + (transposed ? row : element);
      from_ = factor.data + (transposed ? k * factor.stride + i : i * factor.stride + k);
      rows_ = (transposed ? factor.depth - k0 : factor.side - first) - row;
      elements_ = (transposed ? factor.side - first : factor.depth - k0) - element;
    }
    // The next slabs are zeros.
    __device__ void end() { rows_ = 0; }

    // Starts one of the equal parts of a slab's copies. The last part goes on to the next slab.
    __device__ void start(const Factor<T>& factor, std::uint32_t slab, int part, int parts) {
      const int thread = static_cast<int>(threadIdx.x);
      const int place = offset(thread / kRowChunks, thread % kRowChunks);
      const bool inside = elements_ > 0;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        if (n * parts / kCount != part) continue;
        const int row = n * kRowsAtOnce;
        const std::uint32_t to = slab + row * kRowChunks * kChunkBytes + (place ^ swizzle(row) * kChunkBytes);
        copy(to, from_ + row * factor.stride, inside && row < rows_);
      }
      if (part < parts - 1) return;
      from_ += transposed ? kDepth * factor.stride : kDepth;
      (transposed ? rows_ : elements_) -= kDepth;
    }

   private:
    static constexpr int kRowsAtOnce = kThreads / kRowChunks, kCount = kRows / kRowsAtOnce;
    static_assert(kThreads % kRowChunks == 0 && kRows % kRowsAtOnce == 0);
    static_assert((kRowsAtOnce & (kRowsAtOnce - 1)) == 0,
                  "the thread's first row and `row` have no bit in common");

    __device__ void copy(std::uint32_t to, const T* from, bool inside) const {
      if constexpr (aligned) {
        gpu::cp_async_16_or_zeros(to, from, inside);
      } else {
        alignas(kChunkBytes) T elements[kLanes];
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          elements[i] = inside && i < elements_ ? from[i] : gpu::from_float<T>(0.0f);
        }
        store_chunk(to, reinterpret_cast<const uint4&>(elements));
      }
    }

    const T* from_ = nullptr;  // the thread's first element of the next slab
    int rows_ = 0;             // rows in memory from the first element on
    int elements_ = 0;         // elements of a row from there on
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
      gpu::load_matrices(r, slab + (reader.offset ^ (step * kStepBytes)) + i * 16 * slab_bytes);
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (std::uint32_t& word : r) word = gpu::to_tf32(__uint_as_float(word));
    }
  }
};

}  // namespace warpwright::ops::matmul::cuda::mma
