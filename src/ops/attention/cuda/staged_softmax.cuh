// The stage of cuda.staged between its products: the softmax over rows of scores, and its backward. A warp
// takes one row. The forward's exponentials are to base 2; the scale includes log2 e. There are three
// versions, which differ in where a row is kept between its passes:
//   OnlineSoftmax         in memory: one pass for both maximum and sum, and one that writes
//   SoftmaxInRegisters    read once; each lane holds every 32nd score; rows of up to 1,024 keys
//   SoftmaxInShared       read once into shared memory, which limits the number of keys
// The last two are the softmaxes of the unfused path of Y. Zhai et al., "ByteTransformer", arXiv:2210.03052.
#pragma once

#include <cstdint>

#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/staged_products.cuh"
#include "ops/cuda/reduce.cuh"

namespace warpwright::ops::attention::cuda {

constexpr int kRowWarps = 8;  // rows per block

__device__ inline int my_lane() {
  return static_cast<int>(threadIdx.x) % gpu::kWarp;
}
__device__ inline int my_warp() {
  return static_cast<int>(threadIdx.x) / gpu::kWarp;
}

// Calls f(tile, query) for the warp's queries.
template <class F>
__device__ void for_each_query(const Staged& s, F&& f) {
  const Tile t = find_tile<false, kRowWarps>(s.sequences, blockIdx.x);
  const int warps = static_cast<int>(blockDim.x) / gpu::kWarp;
  for (int i = my_warp(); i < t.rows; i += warps) f(t, t.first + i);
}

// A query's row of products q·k, which the softmax turns into probabilities. kPairs: there is a bias or a
// mask.
template <bool kPairs>
struct ScoreRow {
  const ForwardParameters& p;
  const Tile& tile;
  int query;
  float* x;   // (keys)
  int keys;   // keys that the query sees, including those that `visible` hides
  int width;  // largest number of keys of any row

  // Returns the score to base 2, or −∞ if the key is hidden.
  __device__ float score(int j) const {
    const float score = x[j] * (p.scale * kLog2e);
    return kPairs ? with_pairs(p, tile, query, j, score) : score;
  }
};

// The largest score of a row and Σ_j 2^(score_j − largest); −∞ and 0 if no key is visible.
struct RowSum {
  float largest, sum;
  __device__ float inverse() const { return sum == 0 ? 0.0f : 1 / sum; }
};

__device__ inline float exponential(float score, float largest) {
  return score == -INFINITY ? 0.0f : exp2f(score - largest);
}

// A lane corrects its sum whenever its maximum grows. The warp corrects it once more at the end.
struct OnlineSoftmax {
  template <class Row>
  __device__ RowSum operator()(const Row& row) const {
    float largest = -INFINITY, sum = 0;
    for (int j = my_lane(); j < row.keys; j += gpu::kWarp) {
      const float score = row.score(j);
      if (score > largest) {
        sum *= exponential(largest, score);
        largest = score;
      }
      sum += exponential(score, largest);
    }
    const float top = gpu::warp_max(largest);
    const RowSum total{top, gpu::warp_sum(sum * exponential(largest, top))};
    for (int j = my_lane(); j < row.keys; j += gpu::kWarp) {
      row.x[j] = exponential(row.score(j), top) * total.inverse();
    }
    return total;
  }
};

// for_each_held(f) calls f(j, value) for each key j of the lane. `value` is the place that holds its score.
template <class Row, class F>
__device__ RowSum softmax_of_held(const Row& row, F&& for_each_held) {
  RowSum total{-INFINITY, 0};
  for_each_held([&](int j, float& value) {
    value = row.score(j);
    total.largest = fmaxf(total.largest, value);
  });
  total.largest = gpu::warp_max(total.largest);
  for_each_held([&](int, float& value) {
    value = exponential(value, total.largest);
    total.sum += value;
  });
  total.sum = gpu::warp_sum(total.sum);
  for_each_held([&](int j, float& value) { row.x[j] = value * total.inverse(); });
  return total;
}

template <int kHeld>
struct SoftmaxInRegisters {
  template <class Row>
  __device__ RowSum operator()(const Row& row) const {
    float values[kHeld];
    return softmax_of_held(row, [&](auto&& f) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int j = my_lane() + gpu::kWarp * i;
        if (j < row.keys) f(j, values[i]);
      }
    });
  }
};

struct SoftmaxInShared {
  template <class Row>
  __device__ RowSum operator()(const Row& row) const {
    extern __shared__ float held_rows[];  // one row per warp
    float* const values = held_rows + static_cast<std::int64_t>(my_warp()) * row.width;
    return softmax_of_held(row, [&](auto&& f) {
      for (int j = my_lane(); j < row.keys; j += gpu::kWarp) f(j, values[j]);
    });
  }
};

template <class Softmax, bool kPairs>
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp, 2)
    softmax_kernel(float* scores, ForwardParameters p, Staged s) {
  for_each_query(s, [&](const Tile& t, int query) {
    const std::int64_t at = s.query_row(t, query);
    const ScoreRow<kPairs> row{p, t, query, scores + at * s.width, s.visible_keys(t, query), s.width};
    const RowSum total = Softmax()(row);
    if (p.lse && my_lane() == 0) p.lse[at] = kLn2 * (total.largest + log2f(total.sum));
  });
}

// Recomputes the forward's probabilities from the scores and from lse of each row.
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp)
    probabilities_kernel(float* scores, const float* lse, float scale, Staged s) {
  for_each_query(s, [&](const Tile& t, int query) {
    const std::int64_t at = s.query_row(t, query);
    const int keys = s.visible_keys(t, query);
    float* const x = scores + at * s.width;
    for (int j = my_lane(); j < keys; j += gpu::kWarp) x[j] = expf(scale * x[j] - lse[at]);
  });
}

// dscores = scale · P ∘ (dP − dout·out). It replaces dP.
template <class T>
__global__ void __launch_bounds__(kRowWarps* gpu::kWarp)
    softmax_backward_kernel(const float* probabilities, float* dprobabilities, const float* dout, Rows out,
                            float scale, Staged s) {
  for_each_query(s, [&](const Tile& t, int query) {
    const std::int64_t at = s.query_row(t, query);
    const T* const out_row = reinterpret_cast<const T*>(out.at(t.q0 + query, t.head));
    float dot = 0;
    for (int d = my_lane(); d < s.head_size; d += gpu::kWarp) {
      dot = fmaf(dout[at * s.head_size + d], gpu::to_float(out_row[d]), dot);
    }
    dot = gpu::warp_sum(dot);
    const int keys = s.visible_keys(t, query);
    for (int j = my_lane(); j < keys; j += gpu::kWarp) {
      float& d = dprobabilities[at * s.width + j];
      d = scale * probabilities[at * s.width + j] * (d - dot);
    }
  });
}

}  // namespace warpwright::ops::attention::cuda
