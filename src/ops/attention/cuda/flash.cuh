// Attention by tiles, for an engine that holds a tile of scores in registers (mma_engine.cuh,
// fma_engine.cuh).
//
//   forward   One block per tile of queries loops over the tiles of keys that the queries see, with an online
//             softmax (M. Milakov, N. Gimelshein, arXiv:1805.02867). out and lse are written once at the end.
//   backward  Two kernels without atomics. One block per tile of queries sums dq. One block per tile of keys
//             sums dk and dv, over the query heads of its key head. Each sums in order. Scores and dout·vᵀ
//             are computed twice: this takes seven products instead of five, but no partial sums in memory
//             and no waiting. The first kernel stores D and lse (to base 2) for the second.
//
// Exponentials are to base 2; the scale includes log2 e. Tiles that the mask hides are never visited. Only
// tiles on the diagonal, at the edge of the window and at the end of a sequence are masked.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "ops/attention/cuda/instructions.cuh"
#include "ops/attention/cuda/sequences.cuh"
#include "ops/attention/kernels.hpp"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/overlap.cuh"
#include "runtime/context.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::attention::cuda {

// bias or visible. data is null if it is not given.
struct PairTensor {
  const std::byte* data;
  DType dtype;
  PairPlaces places;

  PairTensor(const Tensor& t, const PairPlaces& places_of_t)
      : data(static_cast<const std::byte*>(t.data)), dtype(t.dtype), places(places_of_t) {}
  // Beyond its sizes nothing is read, for any lengths of sequences.
  __device__ bool has(int query, int key) const { return data && query < places.Lq && key < places.Lk; }
  __device__ std::int64_t at(const Tile& tile, int query, int key) const {
    return places.at(tile.sequence, tile.head, query, key);
  }
};

struct ForwardParameters {
  Sequences sequences;
  Rows q, k, v, out;
  float* lse;
  float scale;
  int head_size;
  PairTensor bias, visible;

  explicit ForwardParameters(const AttentionForward& a)
      : sequences(a),
        q(a.q),
        k(a.k),
        v(a.v),
        out(a.out),
        lse(a.lse.as<float>()),
        scale(a.scale),
        head_size(static_cast<int>(a.q.shape[2])),
        bias(a.bias, places_of_bias(a.bias)),
        visible(a.visible, places_of_visible(a.visible)) {}
};

// Returns a score to base 2 with its bias, or −∞ if it is hidden.
__device__ inline float with_pairs(const ForwardParameters& p, const Tile& tile, int query, int key,
                                   float score) {
  if (p.bias.has(query, key)) {
    const std::int64_t at = p.bias.at(tile, query, key);
    switch (p.bias.dtype) {
      case DType::bf16:
        score += __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.bias.data)[at]) * kLog2e;
        break;
      case DType::f16:
        score += __half2float(reinterpret_cast<const __half*>(p.bias.data)[at]) * kLog2e;
        break;
      default:
        score += reinterpret_cast<const float*>(p.bias.data)[at] * kLog2e;
    }
  }
  const bool hidden = p.visible.has(query, key) && reinterpret_cast<const std::uint8_t*>(
                                                       p.visible.data)[p.visible.at(tile, query, key)] == 0;
  return hidden ? -INFINITY : score;
}

// For each query: lse · log2 e (+∞ if it sees no key, so that its probabilities are 0), and D.
using RowStatistics = float2;

struct BackwardParameters {
  Sequences sequences;
  Rows q, k, v, out, dout, dq, dk, dv;
  const float* lse;
  RowStatistics* statistics;  // (NH, Nq)
  float scale;
  int head_size;

  BackwardParameters(const AttentionBackward& a, void* scratch)
      : sequences(a),
        q(a.q),
        k(a.k),
        v(a.v),
        out(a.out),
        dout(a.dout),
        dq(a.dq),
        dk(a.dk),
        dv(a.dv),
        lse(a.lse.as<float>()),
        statistics(static_cast<RowStatistics*>(scratch)),
        scale(a.scale),
        head_size(static_cast<int>(a.q.shape[2])) {}
};

template <class E>
struct Shared {
  using T = typename E::Stored;
  static constexpr int kLeft = E::kRows * E::kStride, kRight = E::kCols * E::kStride;  // elements in a tile
  // Shared memory for `left` resident tiles and the stages of pairs of right tiles. With `statistics`, it
  // also holds the statistics of each column.
  static constexpr std::size_t bytes(int left, bool statistics) {
    return (left * kLeft + 2 * E::kStages * kRight) * sizeof(T) + E::kScratch * sizeof(float) +
           (statistics ? E::kStages * E::kCols * sizeof(RowStatistics) : 0);
  }
};
template <class E>
constexpr std::size_t forward_shared() {
  return Shared<E>::bytes(1, false);
}
template <class E>
constexpr std::size_t backward_shared() {
  return Shared<E>::bytes(2, true);
}

// Calls step(i, stage) for 0 ≤ i < count. Before each call, load(i, stage) is complete and visible to the
// whole block.
template <class E, class Load, class Step>
__device__ void stream_tiles(int count, Load&& load, Step&& step) {
  if (count > 0) load(0, 0);
  cp_async_commit_group();
  for (int i = 0; i < count; ++i) {
    if (E::kStages == 1 && i > 0) {
      __syncthreads();
      load(i, 0);
      cp_async_commit_group();
    }
    cp_async_wait_group<0>();
    __syncthreads();
    if (E::kStages == 2 && i + 1 < count) {
      load(i + 1, (i + 1) % 2);
      cp_async_commit_group();
    }
    step(i, E::kStages == 2 ? i % 2 : 0);
  }
}

// Sets the scores of keys that a query does not see to `hidden`.
template <class E>
__device__ void mask_keys(typename E::Scores& s, const Tile& tile, int key, bool causal, float hidden) {
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    const int end = tile.visible_keys(tile.first + E::row(r), causal) - key;
#pragma unroll
    for (int c = 0; c < E::C; ++c) s[r][c] = E::col(c) < end ? s[r][c] : hidden;
  }
}

// The same for keys before a query's window.
template <class E>
__device__ void mask_old_keys(typename E::Scores& s, const Tile& tile, int key, int window, float hidden) {
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    const int begin = tile.first_key(tile.first + E::row(r), window) - key;
#pragma unroll
    for (int c = 0; c < E::C; ++c) s[r][c] = E::col(c) >= begin ? s[r][c] : hidden;
  }
}

// The tiles of keys that the queries of a tile see, and those whose keys are not seen by all queries.
template <class E>
struct SeenKeys {
  const Tile& tile;
  bool causal;
  int window;
  int last = tile.first + tile.rows - 1;
  int begin = tile.first_key(tile.first, window) / E::kCols;
  int count = (tile.visible_keys(last, causal) + E::kCols - 1) / E::kCols - begin;
  // All queries see the keys between these two.
  int common_begin = tile.first_key(last, window), common_end = tile.visible_keys(tile.first, causal);

  __device__ SeenKeys(const Tile& queries, const Sequences& sequences)
      : tile(queries), causal(sequences.causal), window(sequences.window) {}

  __device__ void mask(typename E::Scores& s, int key, float hidden) const {
    if (key + E::kCols > common_end) mask_keys<E>(s, tile, key, causal, hidden);
    if (key < common_begin) mask_old_keys<E>(s, tile, key, window, hidden);
  }
};

// One step of the online softmax: replaces the scores by exponentials relative to the largest score so far,
// and scales the earlier sums accordingly.
template <class E>
__device__ void exponentiate(typename E::Scores& s, float (&largest)[E::R], float (&sum)[E::R],
                             typename E::Sums& o, float factor) {
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    float top = largest[r];
#pragma unroll
    for (int c = 0; c < E::C; ++c) top = fmaxf(top, s[r][c]);
    top = E::row_max(top);
    const float base = top == -INFINITY ? 0.0f : top * factor;
    const float shrink = exp2_fast(largest[r] * factor - base);
    largest[r] = top;
    float part = 0;
#pragma unroll
    for (int c = 0; c < E::C; ++c) {
      s[r][c] = exp2_fast(fmaf(s[r][c], factor, -base));
      part += s[r][c];
    }
    sum[r] = sum[r] * shrink + part;
#pragma unroll
    for (int c = 0; c < E::O; ++c) o[r][c] *= shrink;
  }
}

// What a forward does with a bias and a mask for each sequence. This one has neither.
struct NoPairs {
  static constexpr bool kAny = false;
  static constexpr std::size_t shared_bytes(const ForwardParameters&) { return 0; }

  __device__ NoPairs(const ForwardParameters&, const Tile&, void*) {}
  __device__ void load(int, int) const {}
};

// Every thread reads the elements of its scores.
template <class E>
struct ReadPairs {
  static constexpr bool kAny = true;
  static constexpr std::size_t shared_bytes(const ForwardParameters&) { return 0; }

  const ForwardParameters& p;
  const Tile& tile;

  __device__ ReadPairs(const ForwardParameters& parameters, const Tile& queries, void*)
      : p(parameters), tile(queries) {}
  __device__ void load(int, int) const {}
  __device__ void add(typename E::Scores& s, int key, int) const {
#pragma unroll
    for (int r = 0; r < E::R; ++r) {
#pragma unroll
      for (int c = 0; c < E::C; ++c)
        s[r][c] = with_pairs(p, tile, tile.first + E::row(r), key + E::col(c), s[r][c]);
    }
  }
};

template <class E, class Pairs>
__global__ void __launch_bounds__(E::kThreads, E::kResident) forward_kernel(const ForwardParameters p) {
  using T = typename E::Stored;
  constexpr bool kScaled = E::kAnyScale || Pairs::kAny;
  extern __shared__ uint4 shared[];
  T* const q_tile = reinterpret_cast<T*>(shared);
  T* const kv_tiles = q_tile + Shared<E>::kLeft;
  float* const scratch = reinterpret_cast<float*>(kv_tiles + 2 * E::kStages * Shared<E>::kRight);

  gpu::let_next_kernel_begin();
  const Tile tile = find_tile<false, E::kRows>(p.sequences, blockIdx.x);
  if (tile.rows <= 0) return;
  const int key_head = p.sequences.key_head(tile.head);
  const SeenKeys<E> seen(tile, p.sequences);
  // From the last tile to the first, so that those on the diagonal come first.
  const auto key_of = [&](int i) { return (seen.begin + seen.count - 1 - i) * E::kCols; };

  const Pairs pairs(p, tile, scratch + E::kScratch);
  gpu::wait_for_kernels_before();
  E::template load<E::kRows>(q_tile, p.q, tile.q0 + tile.first, tile.head, tile.rows, p.head_size);
  const float scale2 = p.scale * kLog2e, factor = kScaled ? 1.0f : scale2;
  typename E::Sums o = {};
  float largest[E::R], sum[E::R];
#pragma unroll
  for (int r = 0; r < E::R; ++r) largest[r] = -INFINITY, sum[r] = 0;

  stream_tiles<E>(
      seen.count,
      [&](int i, int stage) {
        T* to = kv_tiles + 2 * stage * Shared<E>::kRight;
        const int key = key_of(i), valid = tile.Lk - key;
        E::template load<E::kCols>(to, p.k, tile.k0 + key, key_head, valid, p.head_size);
        E::template load<E::kCols>(to + Shared<E>::kRight, p.v, tile.k0 + key, key_head, valid, p.head_size);
        pairs.load(key, stage);
      },
      [&](int i, int stage) {
        const T* k_tile = kv_tiles + 2 * stage * Shared<E>::kRight;
        const int key = key_of(i);
        typename E::Scores s;
        E::scores(s, q_tile, k_tile);
        if (kScaled) {
#pragma unroll
          for (int r = 0; r < E::R; ++r) {
#pragma unroll
            for (int c = 0; c < E::C; ++c) s[r][c] *= scale2;
          }
        }
        if constexpr (Pairs::kAny) pairs.add(s, key, stage);
        seen.mask(s, key, -INFINITY);
        exponentiate<E>(s, largest, sum, o, factor);
        E::accumulate(o, s, k_tile + Shared<E>::kRight, scratch);
      });
  if (seen.count == 0) {
    cp_async_wait_group<0>();
    __syncthreads();
  }

#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    sum[r] = E::row_sum(sum[r]);
    const float inverse = sum[r] == 0 ? 0.0f : 1 / sum[r];
#pragma unroll
    for (int c = 0; c < E::O; ++c) o[r][c] *= inverse;
    if (p.lse && E::col(0) == 0 && E::row(r) < tile.rows) {
      p.lse[static_cast<std::int64_t>(tile.head) * p.sequences.Nq + tile.q0 + tile.first + E::row(r)] =
          sum[r] == 0 ? -INFINITY : fmaf(largest[r], factor * kLn2, logf(sum[r]));
    }
  }
  E::store(p.out, tile.q0 + tile.first, tile.head, tile.rows, o, q_tile, p.head_size);
}

template <class E>
__global__ void __launch_bounds__(E::kThreads, E::kResident)
    backward_query_kernel(const BackwardParameters p) {
  using T = typename E::Stored;
  extern __shared__ uint4 shared[];
  T* const q_tile = reinterpret_cast<T*>(shared);
  T* const dout_tile = q_tile + Shared<E>::kLeft;
  T* const kv_tiles = dout_tile + Shared<E>::kLeft;
  float* const scratch = reinterpret_cast<float*>(kv_tiles + 2 * E::kStages * Shared<E>::kRight);

  const Tile tile = find_tile<false, E::kRows>(p.sequences, blockIdx.x);
  if (tile.rows <= 0) return;
  const int key_head = p.sequences.key_head(tile.head);
  const SeenKeys<E> seen(tile, p.sequences);
  const auto load_keys = [&](int i, int stage) {
    T* to = kv_tiles + 2 * stage * Shared<E>::kRight;
    const int key = (seen.begin + i) * E::kCols, valid = tile.Lk - key;
    E::template load<E::kCols>(to, p.k, tile.k0 + key, key_head, valid, p.head_size);
    E::template load<E::kCols>(to + Shared<E>::kRight, p.v, tile.k0 + key, key_head, valid, p.head_size);
  };

  const int query = tile.q0 + tile.first;
  E::template load<E::kRows>(q_tile, p.q, query, tile.head, tile.rows, p.head_size);
  E::template load<E::kRows>(dout_tile, p.dout, query, tile.head, tile.rows, p.head_size);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  __syncthreads();

  // Computes D of each query with four lanes per row, for this kernel and the next.
  RowStatistics* const statistics =
      p.statistics + static_cast<std::int64_t>(tile.head) * p.sequences.Nq + query;
  const float* const lse = p.lse + static_cast<std::int64_t>(tile.head) * p.sequences.Nq + query;
  for (int r = static_cast<int>(threadIdx.x / 4); r < (tile.rows + 7) / 8 * 8; r += E::kThreads / 4) {
    const int at = min(r, tile.rows - 1);
    const float D =
        E::row_product(dout_tile + at * E::kStride, p.out, p.out.at(query + at, tile.head), p.head_size);
    if (threadIdx.x % 4 == 0 && r < tile.rows) {
      const float l = lse[r];
      statistics[r] = {l == -INFINITY ? INFINITY : l * kLog2e, D};
    }
  }
  __syncthreads();
  float lse2[E::R], D[E::R];
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    const bool exists = E::row(r) < tile.rows;
    const RowStatistics mine = exists ? statistics[E::row(r)] : RowStatistics{INFINITY, 0};
    lse2[r] = mine.x, D[r] = mine.y;
  }

  const float scale2 = p.scale * kLog2e;
  typename E::Sums dq = {};
  stream_tiles<E>(seen.count, load_keys, [&](int i, int stage) {
    const T* k_tile = kv_tiles + 2 * stage * Shared<E>::kRight;
    const int key = (seen.begin + i) * E::kCols;
    typename E::Scores s, dp;
    E::scores(s, q_tile, k_tile);
    E::scores(dp, dout_tile, k_tile + Shared<E>::kRight);
#pragma unroll
    for (int r = 0; r < E::R; ++r) {
#pragma unroll
      for (int c = 0; c < E::C; ++c) {
        s[r][c] = exp2_fast(fmaf(s[r][c], scale2, -lse2[r])) * (dp[r][c] - D[r]);
      }
    }
    seen.mask(s, key, 0.0f);
    E::accumulate(dq, s, k_tile, scratch);
  });
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
#pragma unroll
    for (int c = 0; c < E::O; ++c) dq[r][c] *= p.scale;
  }
  E::store(p.dq, query, tile.head, tile.rows, dq, q_tile, p.head_size);
}

// Sets the transposed scores of queries that do not see a key, and their gradients, to 0.
template <class E>
__device__ void mask_queries(typename E::Scores& s, typename E::Scores& dp, const Tile& tile, int query,
                             bool causal, int window) {
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
    const int key = tile.first + E::row(r), end = tile.end_query(key, window) - query;
    const int begin = causal ? key - tile.offset() - query : 0;
#pragma unroll
    for (int c = 0; c < E::C; ++c) {
      const bool seen = E::col(c) >= begin && E::col(c) < end;
      s[r][c] = seen ? s[r][c] : 0.0f;
      dp[r][c] = seen ? dp[r][c] : 0.0f;
    }
  }
}

template <class E>
__global__ void __launch_bounds__(E::kThreads, E::kResident) backward_key_kernel(const BackwardParameters p) {
  using T = typename E::Stored;
  extern __shared__ uint4 shared[];
  T* const k_tile = reinterpret_cast<T*>(shared);
  T* const v_tile = k_tile + Shared<E>::kLeft;
  T* const query_tiles = v_tile + Shared<E>::kLeft;
  float* const scratch = reinterpret_cast<float*>(query_tiles + 2 * E::kStages * Shared<E>::kRight);
  auto* const statistics = reinterpret_cast<RowStatistics*>(scratch + E::kScratch);

  const int group = p.sequences.group;
  const Tile tile = find_tile<true, E::kRows>(p.sequences, blockIdx.x, p.sequences.key_heads());
  if (tile.rows <= 0) return;
  const bool causal = p.sequences.causal;
  const int window = p.sequences.window;
  // Key j is visible to the queries from j − offset on.
  const int first = causal ? max(tile.first - tile.offset(), 0) / E::kCols * E::kCols : 0;
  const int end = tile.end_query(tile.first + tile.rows - 1, window);  // of the tile's last key
  const int common_end = tile.end_query(tile.first, window);           // of all its keys
  const int blocks = first < end ? (end - first + E::kCols - 1) / E::kCols : 0;
  // Step i has a block of queries of a query head. The heads of the group follow one after the other.
  const auto head_of = [&](int i) { return tile.head * group + i / blocks; };
  const auto query_of = [&](int i) { return first + i % blocks * E::kCols; };

  E::template load<E::kRows>(k_tile, p.k, tile.k0 + tile.first, tile.head, tile.rows, p.head_size);
  E::template load<E::kRows>(v_tile, p.v, tile.k0 + tile.first, tile.head, tile.rows, p.head_size);
  const float scale2 = p.scale * kLog2e;
  typename E::Sums dk = {}, dv = {};
  stream_tiles<E>(
      group * blocks,
      [&](int i, int stage) {
        T* to = query_tiles + 2 * stage * Shared<E>::kRight;
        const int head = head_of(i), query = query_of(i), valid = tile.Lq - query;
        const std::int64_t head_row = static_cast<std::int64_t>(head) * p.sequences.Nq + tile.q0;
        E::template load<E::kCols>(to, p.q, tile.q0 + query, head, valid, p.head_size);
        E::template load<E::kCols>(to + Shared<E>::kRight, p.dout, tile.q0 + query, head, valid, p.head_size);
        if (const int r = static_cast<int>(threadIdx.x); r < E::kCols) {
          cp_async<8>(statistics + stage * E::kCols + r,
                      p.statistics + head_row + (r < valid ? query + r : 0), r < valid ? 8 : 0);
        }
      },
      [&](int i, int stage) {
        const T* q_tile = query_tiles + 2 * stage * Shared<E>::kRight;
        const T* dout_tile = q_tile + Shared<E>::kRight;
        const RowStatistics* of = statistics + stage * E::kCols;
        const int query = query_of(i);
        // Scores and their gradients, transposed: one row per key.
        typename E::Scores s, dp;
        E::scores(s, k_tile, q_tile);
        E::scores(dp, v_tile, dout_tile);
#pragma unroll
        for (int c = 0; c < E::C; ++c) {
          const RowStatistics column = of[E::col(c)];
#pragma unroll
          for (int r = 0; r < E::R; ++r) {
            s[r][c] = exp2_fast(fmaf(s[r][c], scale2, -column.x));
            dp[r][c] = s[r][c] * (dp[r][c] - column.y);
          }
        }
        const bool diagonal = causal && tile.first + tile.rows - 1 > query + tile.offset();
        if (diagonal || query + E::kCols > common_end) mask_queries<E>(s, dp, tile, query, causal, window);
        E::accumulate(dv, s, dout_tile, scratch);
        E::accumulate(dk, dp, q_tile, scratch);
      });
  if (blocks == 0) {
    cp_async_wait_group<0>();
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < E::R; ++r) {
#pragma unroll
    for (int c = 0; c < E::O; ++c) dk[r][c] *= p.scale;
  }
  E::store(p.dk, tile.k0 + tile.first, tile.head, tile.rows, dk, k_tile, p.head_size);
  E::store(p.dv, tile.k0 + tile.first, tile.head, tile.rows, dv, v_tile, p.head_size);
}

// Calls f(integral_constant) if the tensor-core kernels exist for this head size.
template <class F>
void visit_head_size(std::int64_t HS, F&& f) {
  switch (HS) {
    case 32:
      return f(std::integral_constant<int, 32>{});
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 80:
      return f(std::integral_constant<int, 80>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
  }
}

template <class Parameters>
void launch(void (*kernel)(Parameters), const Context& context, const Parameters& p, unsigned blocks,
            int threads, std::size_t shared, std::string_view what) {
  if (blocks == 0) return;
  warpwright::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      what);
  kernel<<<blocks, threads, shared, context.stream().get()>>>(p);
  warpwright::cuda::check_launch(what);
}

template <class E, class Pairs = NoPairs>
void launch_forward(const Context& context, const AttentionForward& a, std::string_view what) {
  const ForwardParameters p(a);
  const unsigned blocks = p.sequences.blocks(p.sequences.Nq, E::kRows);
  if (blocks == 0) return;
  const auto kernel = forward_kernel<E, Pairs>;
  const std::size_t shared = forward_shared<E>() + Pairs::shared_bytes(p);
  gpu::allow_shared(kernel, shared);
  gpu::launch_overlapped(context, kernel, blocks, E::kThreads, shared, what, p);
}

template <class Queries, class Keys>
void launch_backward(const Context& context, const AttentionBackward& a, std::string_view what) {
  const BackwardParameters p(a, context.scratch());
  launch(backward_query_kernel<Queries>, context, p, p.sequences.blocks(p.sequences.Nq, Queries::kRows),
         Queries::kThreads, backward_shared<Queries>(), what);
  launch(backward_key_kernel<Keys>, context, p,
         p.sequences.blocks(p.sequences.Nk, Keys::kRows, p.sequences.key_heads()), Keys::kThreads,
         backward_shared<Keys>(), what);
}

}  // namespace warpwright::ops::attention::cuda
