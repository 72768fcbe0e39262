// One warp computes sixteen queries of one head of a text by mma.sync, from memory to registers and back. It
// needs no shared memory and no barrier, so that each warp of a block can have its own text.
//
// In a product of 16 terms, lane 4g + t holds the terms 2t, 2t + 1, 2t + 8 and 2t + 9 of the left factor's
// rows g and g + 8 and of the right factor's column g. In the first product, the terms are columns of q and
// k. Their order is free if both factors agree: a lane takes eight contiguous columns, so that rows are read
// 16 bytes at a time. In the second product, the terms are keys, whose order is that of the scores, and the
// order of v's columns is free. A lane reads kHeadSize / 8 contiguous columns of four keys, and ends with as
// many contiguous pairs of out.
#pragma once

#include "ops/attention/cuda/flash.cuh"

namespace warpwright::ops::attention::cuda {

// Prefetches a cache line into the second-level cache.
__device__ inline void prefetch(const std::byte* line) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
}

template <int kWords>
__device__ inline void read_words(std::uint32_t* to, const std::byte* from, bool exists) {
  if constexpr (kWords == 4) {
    const uint4 x = exists ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else {
    const uint2 x = exists ? __ldg(reinterpret_cast<const uint2*>(from)) : uint2{};
    to[0] = x.x, to[1] = x.y;
  }
}

template <class T, int kHeadSize>
struct WarpQueries {
  static constexpr int kRows = 16;
  static constexpr int kSteps = kHeadSize / 16;   // per score
  static constexpr int kColumns = kHeadSize / 8;  // per row of v or out
  static_assert(kHeadSize == 32 || kHeadSize == 64);

  const ForwardParameters& p;
  const Tile& tile;  // at most kRows queries
  int g, t;
  std::uint32_t q[2][2 * kSteps];
  float o[2][2 * kColumns] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  __device__ WarpQueries(const ForwardParameters& parameters, const Tile& queries)
      : p(parameters),
        tile(queries),
        g(static_cast<int>(threadIdx.x % 32 / 4)),
        t(static_cast<int>(threadIdx.x % 4)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      read_row(q[r], p.q.at(tile.q0 + tile.first + g + 8 * r, tile.head), g + 8 * r < tile.rows);
    }
  }

  // Reads a lane's columns of a row of q or k.
  __device__ void read_row(std::uint32_t (&to)[2 * kSteps], const std::byte* row, bool exists) const {
#pragma unroll
    for (int i = 0; i < kHeadSize / 32; ++i) read_words<4>(to + 4 * i, row + i * 64 + t * 16, exists);
  }

  // Adds kKeys keys from `key` on. No query sees the keys from `keys` on.
  template <int kKeys>
  __device__ __forceinline__ void add(int key, int keys, float scale2) {
    const bool causal = p.sequences.causal;
    const int left = keys - key;
    if (const int i = static_cast<int>(threadIdx.x % 32); i < min(left, kKeys)) {
      prefetch(p.v.at(tile.k0 + key + i, tile.head));
    }
    const std::byte* const k_rows = p.k.at(tile.k0 + key, tile.head);
    const std::byte* const v_rows = p.v.at(tile.k0 + key, tile.head) + g * (2 * kColumns);
    float score[2][kKeys / 4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      std::uint32_t k[2 * kSteps];
      read_row(k, k_rows + (n * 8 + g) * p.k.row, n * 8 + g < left);
      float(&upper)[kKeys / 4] = score[0];
      float(&lower)[kKeys / 4] = score[1];
      upper[2 * n] = upper[2 * n + 1] = lower[2 * n] = lower[2 * n + 1] = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const std::uint32_t rows[4] = {q[0][2 * i], q[1][2 * i], q[0][2 * i + 1], q[1][2 * i + 1]};
        multiply<T>(upper[2 * n], upper[2 * n + 1], lower[2 * n], lower[2 * n + 1], rows, k[2 * i],
                    k[2 * i + 1]);
      }
    }
    if (key + kKeys > tile.visible_keys(tile.first, causal)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int end = tile.visible_keys(tile.first + g + 8 * r, causal) - key - 2 * t;
#pragma unroll
        for (int c = 0; c < kKeys / 4; ++c) score[r][c] = c / 2 * 8 + c % 2 < end ? score[r][c] : -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int c = 0; c < kKeys / 4; ++c) top = fmaxf(top, score[r][c]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * scale2;
      const float shrink = exp2_fast(largest[r] * scale2 - base);
      largest[r] = top;
      float part = 0;
#pragma unroll
      for (int c = 0; c < kKeys / 4; ++c) part += score[r][c] = exp2_fast(fmaf(score[r][c], scale2, -base));
      sum[r] = sum[r] * shrink + part;
#pragma unroll
      for (int c = 0; c < 2 * kColumns; ++c) o[r][c] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t v[4][kColumns / 2], rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = n * 16 + 2 * t + i % 2 + i / 2 * 8, c = 4 * n + i / 2 * 2;
        read_words<kColumns / 2>(v[i], v_rows + at * p.v.row, at < left);
        rows[i] = pack<T>(score[i % 2][c], score[i % 2][c + 1]);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int halves = c % 2 ? 0x7632 : 0x5410;
        multiply<T>(o[0][c], o[0][kColumns + c], o[1][c], o[1][kColumns + c], rows,
                    __byte_perm(v[0][c / 2], v[1][c / 2], halves),
                    __byte_perm(v[2][c / 2], v[3][c / 2], halves));
      }
    }
  }

  __device__ __forceinline__ void write() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      const int row = g + 8 * r, query = tile.q0 + tile.first + row;
      if (row >= tile.rows) continue;
      if (p.lse && t == 0) {
        p.lse[static_cast<std::int64_t>(tile.head) * p.sequences.Nq + query] =
            sum[r] == 0 ? -INFINITY : fmaf(largest[r], p.scale, logf(sum[r]));
      }
      const float inverse = sum[r] == 0 ? 0.0f : 1 / sum[r];
      std::uint32_t words[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) words[c] = pack<T>(o[r][2 * c] * inverse, o[r][2 * c + 1] * inverse);
      std::byte* const to = p.out.at(query, tile.head) + t * (4 * kColumns);
      if (p.out.aligned) {
#pragma unroll
        for (int c = 0; c < kColumns; c += 4) {
          *reinterpret_cast<uint4*>(to + c * 4) = {words[c], words[c + 1], words[c + 2], words[c + 3]};
        }
      } else {
#pragma unroll
        for (int c = 0; c < 2 * kColumns; ++c) {
          reinterpret_cast<std::uint16_t*>(to)[c] = static_cast<std::uint16_t>(words[c / 2] >> 16 * (c % 2));
        }
      }
    }
  }
};

template <class T, int kHeadSize>
__device__ __forceinline__ void attend_by_warp(const ForwardParameters& p, const Tile& tile, float scale2) {
  WarpQueries<T, kHeadSize> queries(p, tile);
  const int keys = tile.visible_keys(tile.first + tile.rows - 1, p.sequences.causal);
  int key = 0;
#pragma unroll 1
  for (; keys - key > 16; key += 32) queries.template add<32>(key, keys, scale2);
  if (key < keys) queries.template add<16>(key, keys, scale2);
  queries.write();
}

}  // namespace warpwright::ops::attention::cuda
