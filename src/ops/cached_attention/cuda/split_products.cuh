// The products of a warp's keys and values with the queries of a block: on tensor cores in bf16 and fp16, by
// FMA in fp32. Both have the same members:
//   read_queries   head to head + count − 1 of row n
//   score          the scores of the ring's keys
//   weigh          scores become exponentials, with the largest score so far (an online softmax)
//   add_values     adds the values that they weigh
//   store          stores the results since the last call, and begins anew
#pragma once

#include <type_traits>

#include "ops/cached_attention/cuda/softmax.cuh"
#include "ops/cached_attention/cuda/split_join.cuh"
#include "ops/cached_attention/cuda/split_ring.cuh"

namespace warpwright::ops::cached {

// Over the lanes that are a multiple of `apart` from this one.
template <int apart, class Operation>
__device__ inline float over_lanes(float x) {
#pragma unroll
  for (int distance = apart; distance < gpu::kWarp; distance *= 2) {
    x = Operation()(x, __shfl_xor_sync(gpu::kAllLanes, x, distance));
  }
  return x;
}

// Transposes a matrix of 8 × 8 elements of 16 bits, of which lane i has two adjacent ones of row i / 4.
// Source: PTX ISA 9.0, "movmatrix".
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(pair));
  return r;
}

// mma.m16n8k16 with up to 8 query heads as the smaller side: scores (16 keys × 8 heads) are keys · queries,
// sums (16 columns × 8 heads) are transposed values · exponentials.
template <class T, int row_packs, int heads>
class TensorCoreProducts {
 public:
  using Layout = RingLayout<T, row_packs>;
  using Ring = cached::Ring<T, row_packs>;
  using Exchange = cached::Exchange<Layout::kWarps, heads, Layout::kColumns>;
  static constexpr int kHeads = heads, kSteps = Layout::kColumns / 16;
  static_assert(heads <= 8);

  __device__ void read_queries(const Arguments<T>& a, int n, int head, int count) {
    scale_ = a.scale;
    const int d = lane() % 4 * 2, left = lane() / 4 < count ? a.HS - d : 0;
    const T* q = a.q.at(n, head + min(lane() / 4, count - 1)) + d;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = step * 16 + half * 8;
        q_[step][half] = at < left ? *reinterpret_cast<const std::uint32_t*>(q + at) : 0;
      }
    }
  }
  __device__ void score(const Ring& ring, int stage) {
    const int tiles = ring.tiles(stage);
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
      float(&s)[4] = scores_[t];
      s[0] = s[1] = s[2] = s[3] = 0;
      if (t >= tiles) continue;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t keys[4];
        gpu::load_matrices(keys, address(ring.keys(), t, step, lane() / 8 % 2, lane() / 16));
        gpu::multiply<T>(s[0], s[1], s[2], s[3], keys, q_[step][0], q_[step][1]);
      }
    }
  }
  __device__ void weigh(const Ring& ring, int stage) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores_[t][i] *= scale_;
    }
    if (!ring.is_whole(stage)) hide_unseen(ring, stage);
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) largest[i % 2] = fmaxf(largest[i % 2], scores_[t][i]);
    }
    float factors[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) factors[h] = softmax_[h].advance(over_lanes<4, gpu::Max>(largest[h]));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[step][i] *= factors[i % 2];
    }
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = softmax_[i % 2].weigh(scores_[t][i]);
      weights_[t][0] = transposed(gpu::pack<T>(p[0], p[1]));
      weights_[t][1] = transposed(gpu::pack<T>(p[2], p[3]));
    }
  }
  __device__ void add_values(const Ring& ring, int stage) {
    const int tiles = ring.tiles(stage);
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
      if (t >= tiles) break;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t values[4];
        gpu::load_matrices_transposed(values, address(ring.values(), t, step, lane() / 16, lane() / 8 % 2));
        float(&s)[4] = sums_[step];
        gpu::multiply<T>(s[0], s[1], s[2], s[3], values, weights_[t][0], weights_[t][1]);
      }
    }
  }
  __device__ void store(Exchange& exchange, int warp) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = lane() % 4 * 2 + h;
      const float total = over_lanes<4, gpu::Sum>(softmax_[h].total);
      if (head < heads) {
        if (lane() < 4) exchange.weights[warp][head] = {softmax_[h].base(), total};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          float* const to = exchange.sums[warp][head] + step * 16 + lane() / 4;
          to[0] = sums_[step][h];
          to[8] = sums_[step][2 + h];
        }
      }
      softmax_[h] = {};
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[step][i] = 0;
    }
  }

 private:
  __device__ void hide_unseen(const Ring& ring, int stage) {
#pragma unroll
    for (int t = 0; t < Layout::kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool seen = ring.sees(ring.first_key(stage) + t * kTile + half * 8 + lane() / 4);
        scores_[t][2 * half] = seen ? scores_[t][2 * half] : -INFINITY;
        scores_[t][2 * half + 1] = seen ? scores_[t][2 * half + 1] : -INFINITY;
      }
    }
  }
  // The row that this lane passes to an ldmatrix is in the tile's half `keys` and the step's half `columns`.
  __device__ static std::uint32_t address(const uint4* packs, int tile, int step, int keys, int columns) {
    const int row = keys * 8 + lane() % 8;
    const auto place = Layout::place(static_cast<unsigned>(row), static_cast<unsigned>(columns));
    return gpu::shared_address(packs + tile * kTile * row_packs + (place ^ static_cast<unsigned>(step * 2)));
  }

  float scale_ = 1;
  std::uint32_t q_[kSteps][2];
  float scores_[Layout::kTiles][4];
  std::uint32_t weights_[Layout::kTiles][2];
  Softmax softmax_[2];
  float sums_[kSteps][4] = {};
};

// A thread reads its pack of each row. Another lane may have copied it.
template <class T, int row_packs, int heads>
class FmaProducts {
 public:
  using Layout = RingLayout<T, row_packs>;
  using Ring = cached::Ring<T, row_packs>;
  using Exchange = cached::Exchange<Layout::kWarps, heads, Layout::kColumns>;
  using Pack = gpu::Packed<T>;
  static constexpr int kHeads = heads;

  __device__ void read_queries(const Arguments<T>& a, int n, int head, int count) {
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      const bool exists = g < count && column() < a.HS;
      const Pack pack = exists ? Pack::load(a.q.at(n, head + g) + column()) : Pack::zero();
#pragma unroll
      for (int i = 0; i < Layout::kLanes; ++i) q_[g][i] = pack[i] * a.scale;
    }
  }
  // All threads of a row get its scores.
  __device__ void score(const Ring& ring, int stage) {
    const int passes = ring.tiles(stage) * Layout::kTilePasses;
#pragma unroll
    for (int p = 0; p < Layout::kPasses; ++p) {
#pragma unroll
      for (int g = 0; g < heads; ++g) scores_[p][g] = -INFINITY;
      if (p >= passes) continue;
      const Pack keys = pack_at(ring.keys(), p);
      const bool seen = ring.sees(ring.first_key(stage) + p * Layout::kRows + lane() / row_packs);
#pragma unroll
      for (int g = 0; g < heads; ++g) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < Layout::kLanes; ++i) s = fmaf(q_[g][i], keys[i], s);
        s = gpu::warp_sum<row_packs>(s);
        if (seen) scores_[p][g] = s;
      }
    }
  }
  __device__ void weigh(const Ring&, int) {
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      float largest = scores_[0][g];
#pragma unroll
      for (int p = 1; p < Layout::kPasses; ++p) largest = fmaxf(largest, scores_[p][g]);
      const float factor = softmax_[g].advance(over_lanes<row_packs, gpu::Max>(largest));
#pragma unroll
      for (int i = 0; i < Layout::kLanes; ++i) sums_[g][i] *= factor;
#pragma unroll
      for (int p = 0; p < Layout::kPasses; ++p) scores_[p][g] = softmax_[g].weigh(scores_[p][g]);
    }
  }
  __device__ void add_values(const Ring& ring, int stage) {
    const int passes = ring.tiles(stage) * Layout::kTilePasses;
#pragma unroll
    for (int p = 0; p < Layout::kPasses; ++p) {
      if (p >= passes) break;
      const Pack values = pack_at(ring.values(), p);
#pragma unroll
      for (int g = 0; g < heads; ++g) {
#pragma unroll
        for (int i = 0; i < Layout::kLanes; ++i) sums_[g][i] = fmaf(scores_[p][g], values[i], sums_[g][i]);
      }
    }
  }
  __device__ void store(Exchange& exchange, int warp) {
#pragma unroll
    for (int g = 0; g < heads; ++g) {
      const float total = over_lanes<row_packs, gpu::Sum>(softmax_[g].total);
      if (lane() == 0) exchange.weights[warp][g] = {softmax_[g].base(), total};
#pragma unroll
      for (int i = 0; i < Layout::kLanes; ++i) {
        const float sum = over_lanes<row_packs, gpu::Sum>(sums_[g][i]);
        if (lane() < row_packs) exchange.sums[warp][g][column() + i] = sum;
        sums_[g][i] = 0;
      }
      softmax_[g] = {};
    }
  }

 private:
  __device__ static int column() {
    return lane() % row_packs * Layout::kLanes;
  }
  __device__ static Pack pack_at(const uint4* packs, int pass) {
    const int row = pass * Layout::kRows + lane() / row_packs;
    const auto place = Layout::place(static_cast<unsigned>(row), static_cast<unsigned>(lane() % row_packs));
    return Pack::load(reinterpret_cast<const T*>(packs + place));
  }

  float q_[heads][Layout::kLanes];
  float scores_[Layout::kPasses][heads];
  Softmax softmax_[heads];
  float sums_[heads][Layout::kLanes] = {};
};

template <class T, int row_packs, int heads>
using Products = std::conditional_t<sizeof(T) == 2, TensorCoreProducts<T, row_packs, heads>,
                                    FmaProducts<T, row_packs, heads>>;

}  // namespace warpwright::ops::cached
