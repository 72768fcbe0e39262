// Tiles on tensor cores by mma.sync (sm_80): bf16 and fp16 directly, fp32 rounded to tf32.
//
// A block has four warps. Each owns 16·kRowTiles rows of the scores and of the outputs. The softmax thus
// needs only shuffles among four lanes, and a score goes from the accumulators of one product to the left
// factor of the next without leaving its registers. Tiles in shared memory have 16 bytes between rows. This
// places the eight rows of an ldmatrix in eight different groups of banks for every head size.
#pragma once

#include "ops/attention/cuda/instructions.cuh"
#include "ops/attention/cuda/sequences.cuh"

namespace warpwright::ops::attention::cuda {

template <class T, int kHeadSizeT, int kRowTiles, int kColsT, int kResidentT>
struct MmaEngine {
  using Stored = T;
  static constexpr bool kTf32 = sizeof(T) == 4;
  static constexpr int kHeadSize = kHeadSizeT;
  static constexpr int kThreads = 128, kResident = kResidentT, kStages = 2;
  static constexpr int kRows = 64 * kRowTiles, kCols = kColsT;
  static constexpr int kChunk = 16 / sizeof(T),
                       kChunks = kHeadSize / kChunk;  // elements of a chunk, and chunks of a row
  static constexpr int kStride = kHeadSize + kChunk;
  static constexpr int kScratch = 0;  // floats
  static constexpr bool kAnyScale = false;
  // Owned by a thread: rows, columns of the scores, columns of the outputs.
  static constexpr int R = 2 * kRowTiles, C = kCols / 4, O = kHeadSize / 4;
  static_assert(kCols % 16 == 0 && kHeadSize % 16 == 0);

  using Scores = float[R][C];
  using Sums = float[R][O];

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32) * 16 * kRowTiles; }
  __device__ static int row(int r) { return warp_row() + r / 2 * 16 + r % 2 * 8 + lane() / 4; }
  __device__ static int col(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }

  __device__ static float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }
  __device__ static float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }

  // Loads kCount rows. Rows after the first `valid` become zeros.
  template <int kCount>
  __device__ static void load(T* tile, const Rows& from, int first, int head, int valid, int) {
    const std::byte* base = from.at(first, head);
    constexpr int kSteps = (kCount * kChunks + kThreads - 1) / kThreads;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int r = index / kChunks, chunk = index % kChunks;
      if (kCount * kChunks % kThreads != 0 && r >= kCount) break;
      const bool exists = r < valid;
      cp_async<16>(tile + r * kStride + chunk * kChunk, base + (exists ? r * from.row + chunk * 16 : 0),
                   exists ? 16 : 0);
    }
  }

  __device__ static std::uint32_t rounded(std::uint32_t x) {
    if constexpr (kTf32) return to_tf32(__uint_as_float(x));
    return x;
  }
  __device__ static void round_all(std::uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = rounded(x[i]);
  }

  // s = a·bᵀ for rows of two tiles.
  __device__ static void scores(Scores& s, const T* a, const T* b) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) s[r][c] = 0;
    }
    const std::uint32_t a_row =
        shared_address(a + (warp_row() + lane() % 16) * kStride + lane() / 16 * kChunk);
    const std::uint32_t b_row =
        shared_address(b + (lane() % 8 + lane() / 16 * 8) * kStride + lane() / 8 % 2 * kChunk);
#pragma unroll
    for (int step = 0; step < kChunks / 2; ++step) {
      std::uint32_t fa[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_matrices(fa[m], a_row + (m * 16 * kStride) * sizeof(T) + step * 32);
        round_all(fa[m]);
      }
#pragma unroll
      for (int n = 0; n < kCols / 16; ++n) {
        std::uint32_t fb[4];
        load_matrices(fb, b_row + (n * 16 * kStride) * sizeof(T) + step * 32);
        round_all(fb);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          float(&upper)[C] = s[2 * m];
          float(&lower)[C] = s[2 * m + 1];
          multiply<T>(upper[4 * n], upper[4 * n + 1], lower[4 * n], lower[4 * n + 1], fa[m], fb[0], fb[1]);
          multiply<T>(upper[4 * n + 2], upper[4 * n + 3], lower[4 * n + 2], lower[4 * n + 3], fa[m], fb[2],
                      fb[3]);
        }
      }
    }
  }

  // o += p·b, with p rounded to T.
  __device__ static void accumulate(Sums& o, const Scores& p, const T* b, float*) {
    if constexpr (kTf32) {
      // The order of a step's eight keys in the sum is free. Lane t holds keys 2t and 2t + 1 of p, so it
      // takes these rows of b at places t and t + 4.
      const T* base = b + lane() % 4 * 2 * kStride + lane() / 4;
#pragma unroll
      for (int step = 0; step < kCols / 8; ++step) {
        std::uint32_t fa[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          fa[m][0] = to_tf32(p[2 * m][2 * step]);
          fa[m][1] = to_tf32(p[2 * m + 1][2 * step]);
          fa[m][2] = to_tf32(p[2 * m][2 * step + 1]);
          fa[m][3] = to_tf32(p[2 * m + 1][2 * step + 1]);
        }
#pragma unroll
        for (int n = 0; n < kHeadSize / 8; ++n) {
          const std::uint32_t b0 = to_tf32(base[step * 8 * kStride + n * 8]);
          const std::uint32_t b1 = to_tf32(base[(step * 8 + 1) * kStride + n * 8]);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            multiply<T>(o[2 * m][2 * n], o[2 * m][2 * n + 1], o[2 * m + 1][2 * n], o[2 * m + 1][2 * n + 1],
                        fa[m], b0, b1);
          }
        }
      }
    } else {
      const std::uint32_t base = shared_address(b + lane() % 16 * kStride + lane() / 16 * kChunk);
#pragma unroll
      for (int step = 0; step < kCols / 16; ++step) {
        std::uint32_t fa[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float(&line)[C] = p[2 * m + i % 2];
            fa[m][i] = pack<T>(line[4 * step + i / 2 * 2], line[4 * step + i / 2 * 2 + 1]);
          }
        }
#pragma unroll
        for (int n = 0; n < kHeadSize / 16; ++n) {
          std::uint32_t fb[4];
          load_matrices_transposed(fb, base + (step * 16 * kStride) * sizeof(T) + n * 32);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            float(&upper)[O] = o[2 * m];
            float(&lower)[O] = o[2 * m + 1];
            multiply<T>(upper[4 * n], upper[4 * n + 1], lower[4 * n], lower[4 * n + 1], fa[m], fb[0], fb[1]);
            multiply<T>(upper[4 * n + 2], upper[4 * n + 3], lower[4 * n + 2], lower[4 * n + 3], fa[m], fb[2],
                        fb[3]);
          }
        }
      }
    }
  }

  // The dot product of a row of a tile and a row in memory, computed by four adjacent lanes.
  __device__ static float row_product(const T* tile_row, const Rows& from, const std::byte* line, int) {
    float sum = 0;
    for (int chunk = lane() % 4; chunk < kChunks; chunk += 4) {
      alignas(16) T x[kChunk], y[kChunk];
      *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(tile_row + chunk * kChunk);
      const T* other = reinterpret_cast<const T*>(line) + chunk * kChunk;
      if (from.aligned) {
        *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(other);
      } else {
        for (int i = 0; i < kChunk; ++i) y[i] = other[i];
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
    }
    return row_sum(sum);
  }

  // Writes the first `valid` rows. Each warp must have read only its own rows of `tile`, which is
  // overwritten.
  __device__ static void store(const Rows& to, int first, int head, int valid, const Sums& o, T* tile, int) {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < O; c += 2) {
        T* at = tile + row(r) * kStride + col(c);
        if constexpr (kTf32) {
          *reinterpret_cast<float2*>(at) = {o[r][c], o[r][c + 1]};
        } else {
          *reinterpret_cast<std::uint32_t*>(at) = pack<T>(o[r][c], o[r][c + 1]);
        }
      }
    }
    __syncwarp();
    for (int index = lane(); index < 16 * kRowTiles * kChunks; index += 32) {
      const int r = warp_row() + index / kChunks, chunk = index % kChunks;
      if (r >= valid) break;
      const T* from = tile + r * kStride + chunk * kChunk;
      T* at = reinterpret_cast<T*>(to.at(first + r, head)) + chunk * kChunk;
      if (to.aligned) {
        *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int i = 0; i < kChunk; ++i) at[i] = from[i];
      }
    }
  }
};

}  // namespace warpwright::ops::attention::cuda
