// Tiles by fp32 multiply-adds, for any floating dtype except fp64, any strides, any scale, and head sizes up
// to kHeadSize. The 128 threads are arranged as 16×8, so that a warp reads 4 rows of one factor and 8 of the
// other, 128 bytes, at a time. A thread has rows ty + 16i, columns tx + 8j of the scores, and columns 4·tx +
// 32c + {0, 1, 2, 3} of the outputs. Tiles are fp32 in shared memory. Scores that become a left factor also
// pass through shared memory; only the eight lanes that wrote a row read it.
#pragma once

#include "ops/attention/cuda/instructions.cuh"
#include "ops/attention/cuda/sequences.cuh"

namespace warpwright::ops::attention::cuda {

template <int kHeadSizeT, int kRowsT, int kColsT>
struct FmaEngine {
  using Stored = float;
  static constexpr int kHeadSize = kHeadSizeT;
  static constexpr int kThreads = 128, kResident = kHeadSize <= 128 ? 2 : 1, kStages = 1;
  static constexpr int kRows = kRowsT, kCols = kColsT;
  static constexpr int kStride = kHeadSize + 4, kScoreStride = kCols + 8;  // avoids bank conflicts
  static constexpr int kScratch = kRows * kScoreStride;
  static constexpr bool kAnyScale = true;
  static constexpr int R = kRows / 16, C = kCols / 8, O = kHeadSize / 8;
  static_assert(kHeadSize % 32 == 0);

  using Scores = float[R][C];
  using Sums = float[R][O];

  __device__ static int tx() { return static_cast<int>(threadIdx.x % 8); }
  __device__ static int ty() { return static_cast<int>(threadIdx.x / 8); }
  __device__ static int row(int r) { return ty() + 16 * r; }
  __device__ static int col(int c) { return tx() + 8 * c; }

  __device__ static float row_max(float x) {
#pragma unroll
    for (int step = 4; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
  }
  __device__ static float row_sum(float x) {
#pragma unroll
    for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }

  __device__ static float element(const Rows& from, const std::byte* line, int d) {
    switch (from.dtype) {
      case DType::bf16:
        return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(line)[d]);
      case DType::f16:
        return __half2float(reinterpret_cast<const __half*>(line)[d]);
      default:
        return reinterpret_cast<const float*>(line)[d];
    }
  }

  // Loads fp32 16 bytes at a time if the rows allow it, and otherwise one element at a time.
  template <int kCount>
  __device__ static void load(float* tile, const Rows& from, int first, int head, int valid, int head_size) {
    if (from.dtype == DType::f32 && from.aligned && head_size % 4 == 0) {
      constexpr int kChunks = kHeadSize / 4;
      const std::byte* const base = from.at(first, head);
#pragma unroll
      for (int i = 0; i < kCount * kChunks / kThreads; ++i) {
        const int index = static_cast<int>(threadIdx.x) + i * kThreads;
        const int r = index / kChunks, chunk = index % kChunks;
        const bool exists = r < valid && 4 * chunk < head_size;
        cp_async<16>(tile + r * kStride + 4 * chunk, base + (exists ? r * from.row + 16 * chunk : 0),
                     exists ? 16 : 0);
      }
      return;
    }
    for (int index = static_cast<int>(threadIdx.x); index < kCount * kHeadSize; index += kThreads) {
      const int r = index / kHeadSize, d = index % kHeadSize;
      tile[r * kStride + d] = r < valid && d < head_size ? element(from, from.at(first + r, head), d) : 0.0f;
    }
  }

  __device__ static void scores(Scores& s, const float* a, const float* b) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) s[r][c] = 0;
    }
#pragma unroll 4
    for (int d = 0; d < kHeadSize; d += 4) {
      float4 x[R], y[C];
#pragma unroll
      for (int r = 0; r < R; ++r) x[r] = *reinterpret_cast<const float4*>(a + row(r) * kStride + d);
#pragma unroll
      for (int c = 0; c < C; ++c) y[c] = *reinterpret_cast<const float4*>(b + col(c) * kStride + d);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          s[r][c] += x[r].x * y[c].x;
          s[r][c] += x[r].y * y[c].y;
          s[r][c] += x[r].z * y[c].z;
          s[r][c] += x[r].w * y[c].w;
        }
      }
    }
  }

  __device__ static void accumulate(Sums& o, const Scores& p, const float* b, float* scratch) {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) scratch[row(r) * kScoreStride + col(c)] = p[r][c];
    }
    __syncwarp();
    for (int j = 0; j < kCols; j += 4) {
      float4 x[R];
#pragma unroll
      for (int r = 0; r < R; ++r)
        x[r] = *reinterpret_cast<const float4*>(scratch + row(r) * kScoreStride + j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < O; c += 4) {
          const float4 y = *reinterpret_cast<const float4*>(b + (j + i) * kStride + 4 * tx() + 8 * c);
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const float f = i == 0 ? x[r].x : i == 1 ? x[r].y : i == 2 ? x[r].z : x[r].w;
            o[r][c] += f * y.x;
            o[r][c + 1] += f * y.y;
            o[r][c + 2] += f * y.z;
            o[r][c + 3] += f * y.w;
          }
        }
      }
    }
  }

  // Four lanes per row, as in the other engine.
  __device__ static float row_product(const float* tile_row, const Rows& from, const std::byte* line,
                                      int head_size) {
    float sum = 0;
    for (int d = static_cast<int>(threadIdx.x % 4); d < head_size; d += 4) {
      sum += tile_row[d] * element(from, line, d);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }

  __device__ static void store(const Rows& to, int first, int head, int valid, const Sums& o, float*,
                               int head_size) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (row(r) >= valid) continue;
      std::byte* line = to.at(first + row(r), head);
#pragma unroll
      for (int c = 0; c < O; ++c) {
        const int d = 4 * tx() + c / 4 * 32 + c % 4;
        if (d >= head_size) continue;
        switch (to.dtype) {
          case DType::bf16:
            reinterpret_cast<__nv_bfloat16*>(line)[d] = __float2bfloat16_rn(o[r][c]);
            break;
          case DType::f16:
            reinterpret_cast<__half*>(line)[d] = __float2half_rn(o[r][c]);
            break;
          default:
            reinterpret_cast<float*>(line)[d] = o[r][c];
        }
      }
    }
  }
};

}  // namespace warpwright::ops::attention::cuda
