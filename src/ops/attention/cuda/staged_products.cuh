// The stages of cuda.staged before and after its softmax: the permutation of heads and its inverse, and the
// products of rows with scores in memory. A block has a tile of 64 rows of one sequence and head.
#pragma once

#include <cstdint>

#include "ops/attention/cuda/sequences.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::attention::cuda {

// The problem as the stages see it. Rows are stored as (NH, N, HS) and scores as (NH, Nq, width), where the
// keys of a row count from its sequence's first. Both are fp32 and contiguous.
struct Staged {
  Sequences sequences;
  int head_size;
  int width;  // upper bound for the keys of the longest sequence

  __device__ std::int64_t query_row(const Tile& t, int query) const {
    return static_cast<std::int64_t>(t.head) * sequences.Nq + t.q0 + query;
  }
  __device__ std::int64_t key_row(const Tile& t, int key) const {
    return static_cast<std::int64_t>(t.head) * sequences.Nk + t.k0 + key;
  }
  // A query of the sequence sees its first visible_keys() keys. A key is visible to the queries from
  // first_query() on.
  __device__ int visible_keys(const Tile& t, int query) const {
    return min(t.visible_keys(query, sequences.causal), width);
  }
  __device__ int first_query(const Tile& t, int key) const {
    if (key >= width) return t.Lq;
    return sequences.causal ? min(max(key - t.offset(), 0), t.Lq) : 0;
  }
};

// Permutes (N, NH, HS) to (NH, N, HS), and back. Rows after the last sequence are not read but set to 0; on
// the way back they are not written.
template <class T>
__global__ void permute_kernel(Rows from, const std::int32_t* cu_seqlens, float* to, int N, Staged s) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t d = at % s.head_size, row = at / s.head_size;
  const auto n = static_cast<int>(row % N), h = static_cast<int>(row / N);
  if (h >= s.sequences.heads) return;
  const bool used = n < bound(cu_seqlens, s.sequences.count, N);
  to[at] = used ? gpu::to_float(reinterpret_cast<const T*>(from.at(n, h))[d]) : 0.0f;
}
template <class T>
__global__ void unpermute_kernel(const float* from, const std::int32_t* cu_seqlens, Rows to, int N,
                                 Staged s) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t d = at % s.head_size, row = at / s.head_size;
  const auto h = static_cast<int>(row % s.sequences.heads);
  const std::int64_t n = row / s.sequences.heads;
  if (n >= bound(cu_seqlens, s.sequences.count, N)) return;
  const std::int64_t source = (static_cast<std::int64_t>(h) * N + n) * s.head_size + d;
  reinterpret_cast<T*>(to.at(static_cast<int>(n), h))[d] = gpu::from_float<T>(from[source]);
}

constexpr int kTile = 64, kDepth = 16;  // rows and columns of a block's product; length of its steps
constexpr int kSide = 16;               // threads along a side of the tile, each with kEach results
constexpr int kEach = kTile / kSide;
constexpr int kProductThreads = kSide * kSide;
constexpr int kPadding = 4;

struct Range {
  int begin, end;
};

// The row and the column of the thread's first result in its tile. The other results are kSide apart.
__device__ inline int my_row() {
  return static_cast<int>(threadIdx.x) / kSide;
}
__device__ inline int my_col() {
  return static_cast<int>(threadIdx.x) % kSide;
}

// Computes a block's 64 × 64 results Σ_k a(i, k)·b(k, j) for k in `depth`; i and j count from the tile's
// corner. A row takes part only for k within its limits. It is thus not affected by what its neighbours in
// the tile multiply, which may be NaN.
template <class A, class B>
__device__ void tile_product(Range depth, A&& a, B&& b, const Range (&limits)[kEach],
                             float (&sums)[kEach][kEach]) {
  __shared__ float a_tile[kDepth][kTile + kPadding];
  __shared__ float b_tile[kDepth][kTile + kPadding];
  for (int k0 = depth.begin; k0 < depth.end; k0 += kDepth) {
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < kTile * kDepth; n += kProductThreads) {
      const int k = n % kDepth, i = n / kDepth;
      a_tile[k][i] = k0 + k < depth.end ? a(i, k0 + k) : 0.0f;
      b_tile[k][i] = k0 + k < depth.end ? b(k0 + k, i) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (k0 + k < limits[i].begin || k0 + k >= limits[i].end) continue;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] = fmaf(a_tile[k][my_row() + kSide * i], b_tile[k][my_col() + kSide * j], sums[i][j]);
        }
      }
    }
  }
}

// Computes the limits of the thread's rows in a tile of `rows` rows: of(i) for row i, and empty limits after
// the last row.
template <class F>
__device__ void limits_of(int rows, F&& of, Range (&limits)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = my_row() + kSide * i;
    limits[i] = row < rows ? of(row) : Range{0, 0};
  }
}

// Calls f(i, j, sum) for the thread's results.
template <class F>
__device__ void for_each_result(const float (&sums)[kEach][kEach], F&& f) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) f(my_row() + kSide * i, my_col() + kSide * j, sums[i][j]);
  }
}

// to[h][i][j] = left[h][i] · right[h][j] for the keys j that query i sees.
__global__ void __launch_bounds__(kProductThreads)
    scores_kernel(const float* left, const float* right, float* to, Staged s) {
  const Tile t = find_tile<false, kTile>(s.sequences, blockIdx.x);
  if (t.rows == 0) return;
  const std::int64_t HS = s.head_size, width = s.width;
  left += s.query_row(t, t.first) * HS, right += s.key_row(t, 0) * HS, to += s.query_row(t, t.first) * width;
  const Range whole = {0, s.head_size}, limits[kEach] = {whole, whole, whole, whole};
  const int keys = s.visible_keys(t, t.first + t.rows - 1);
  for (int key = static_cast<int>(blockIdx.y) * kTile; key < keys;
       key += static_cast<int>(gridDim.y) * kTile) {
    float sums[kEach][kEach] = {};
    tile_product(
        whole, [&](int i, int d) { return i < t.rows ? left[i * HS + d] : 0.0f; },
        [&](int d, int j) { return key + j < keys ? right[(key + j) * HS + d] : 0.0f; }, limits, sums);
    for_each_result(sums, [&](int i, int j, float sum) {
      if (i < t.rows && key + j < s.visible_keys(t, t.first + i)) to[i * width + key + j] = sum;
    });
  }
}

// to[h][i] = Σ_j weights[h][i][j] · of[h][j] over the keys j that query i sees.
__global__ void __launch_bounds__(kProductThreads)
    sum_over_keys_kernel(const float* weights, const float* of, float* to, Staged s) {
  const Tile t = find_tile<false, kTile>(s.sequences, blockIdx.x);
  if (t.rows == 0) return;
  const std::int64_t HS = s.head_size, width = s.width;
  weights += s.query_row(t, t.first) * width, of += s.key_row(t, 0) * HS, to += s.query_row(t, t.first) * HS;
  const auto seen = [&](int i) { return Range{0, s.visible_keys(t, t.first + i)}; };
  Range limits[kEach];
  limits_of(t.rows, seen, limits);
  for (int d0 = static_cast<int>(blockIdx.y) * kTile; d0 < HS; d0 += static_cast<int>(gridDim.y) * kTile) {
    float sums[kEach][kEach] = {};
    tile_product(
        seen(t.rows - 1),
        [&](int i, int j) { return i < t.rows && j < seen(i).end ? weights[i * width + j] : 0.0f; },
        [&](int j, int d) { return d0 + d < HS ? of[j * HS + d0 + d] : 0.0f; }, limits, sums);
    for_each_result(sums, [&](int i, int d, float sum) {
      if (i < t.rows && d0 + d < HS) to[i * HS + d0 + d] = sum;
    });
  }
}

// to[h][j] = Σ_i weights[h][i][j] · of[h][i] over the queries i that see key j.
__global__ void __launch_bounds__(kProductThreads)
    sum_over_queries_kernel(const float* weights, const float* of, float* to, Staged s) {
  const Tile t = find_tile<true, kTile>(s.sequences, blockIdx.x);
  if (t.rows == 0) return;
  const std::int64_t HS = s.head_size, width = s.width;
  weights += s.query_row(t, 0) * width, of += s.query_row(t, 0) * HS, to += s.key_row(t, t.first) * HS;
  const auto seeing = [&](int j) { return Range{s.first_query(t, t.first + j), t.Lq}; };
  Range limits[kEach];
  limits_of(t.rows, seeing, limits);
  for (int d0 = static_cast<int>(blockIdx.y) * kTile; d0 < HS; d0 += static_cast<int>(gridDim.y) * kTile) {
    float sums[kEach][kEach] = {};
    tile_product(
        seeing(0),
        [&](int j, int i) {
          return j < t.rows && i >= seeing(j).begin ? weights[i * width + t.first + j] : 0.0f;
        },
        [&](int i, int d) { return d0 + d < HS ? of[i * HS + d0 + d] : 0.0f; }, limits, sums);
    for_each_result(sums, [&](int j, int d, float sum) {
      if (j < t.rows && d0 + d < HS) to[j * HS + d0 + d] = sum;
    });
  }
}

}  // namespace warpwright::ops::attention::cuda
