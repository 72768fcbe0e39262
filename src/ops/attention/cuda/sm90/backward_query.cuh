// The queries' half of the backward: dq, and the statistics of each query, which the keys' half reads.
#pragma once

#include "ops/attention/cuda/sm90/backward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// lse (to base 2) and D of a thread's two rows.
struct RowsOfThread {
  float lse2[2] = {INFINITY, INFINITY}, D[2] = {0, 0};
};

// Adds the product of eight numbers in each of two rows to the sum.
template <class T>
__device__ float row_product(const T* dout, const T* out, bool aligned, float sum) {
  alignas(16) T x[8], y[8];
  *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(dout);
  if (aligned) {
    *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(out);
  } else {
    for (int i = 0; i < 8; ++i) y[i] = out[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

// Finds D of each query. The four lanes that have the scores of a row sum its product and keep it.
template <class S>
__device__ RowsOfThread find_statistics(const BackwardParameters& p, const Tile& tile, int first, int rows,
                                        const Lane& lane) {
  using T = typename S::T;
  RowsOfThread mine;
  const int query = tile.q0 + first;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane.row(r);
    if (row < rows) {
      const T* dout = reinterpret_cast<const T*>(p.dout.at(query + row, tile.head));
      const T* out = reinterpret_cast<const T*>(p.out.at(query + row, tile.head));
#pragma unroll
      for (int chunk = 0; chunk < S::kHeadSize / 32; ++chunk) {
        const int at = (chunk * 4 + lane.thread % 4) * 8;
        mine.D[r] = row_product(dout + at, out + at, p.out.aligned, mine.D[r]);
      }
      const float lse = p.lse[static_cast<std::int64_t>(tile.head) * p.sequences.Nq + query + row];
      mine.lse2[r] = lse == -INFINITY ? INFINITY : lse * kLog2e;
    }
    mine.D[r] += __shfl_xor_sync(~0u, mine.D[r], 1);
    mine.D[r] += __shfl_xor_sync(~0u, mine.D[r], 2);
    if (row < rows && lane.column() == 0) {
      statistics_of(p, tile, tile.head)[first + row] = {mine.lse2[r], mine.D[r]};
    }
  }
  return mine;
}

// The blocks of keys and values that a group's queries see, from the last to the first. Arrays are references
// to local variables; as members, they would keep the compiler from holding the other members in registers.
template <class S>
struct KeyBlocks {
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize;
  using Queries = LeftRows<S, S::kGroups == 2>;
  using Gradients = LeftRows<S, kHeadSize == 64 && S::kGroups == 2>;
  BackwardGroup<S>& group;
  const Tile& tile;
  const RowsOfThread& of_rows;
  float (&dq)[kHeadSize / 2];
  int first;                 // the group's first query
  int common_begin, common;  // all of them see the keys from the one to the other
  int key, last_key;
  const Queries& q;
  const Gradients& dout;
  float (&s)[32], (&dp)[32];
  std::uint32_t (&factor)[4][4];

  // Clears the end of the last block, which may have rows of the next sequence.
  __device__ void clear_end() const {
    if (key + kBox <= tile.Lk) return;
    group.wait_for_stage();
    clear_rows<kBox, kHeadSize>(group.stage(), tile.Lk - key, group.lane);
  }
  __device__ void multiply() { multiply_block(group, s, q, dp, dout); }
  __device__ void exponentiate() {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = exp2_fast(fmaf(s[i], group.scale2, -of_rows.lse2[i / 2 % 2]));
  }
  __device__ void differentiate() {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] *= dp[i] - of_rows.D[i / 2 % 2];
    if (key + kBox > common) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int end =
            tile.visible_keys(first + group.lane.row(r), group.causal) - key - group.lane.column();
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 < end ? s[i] : 0.0f;
        }
      }
    }
    if constexpr (S::kWindow) mask_old();
  }
  // Zeros for keys before the window.
  __device__ void mask_old() {
    if (key >= common_begin) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = tile.first_key(first + group.lane.row(r), group.window()) - key - group.lane.column();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 >= begin ? s[i] : 0.0f;
      }
    }
  }
  __device__ void pack() {
    pack_factor<T, kBox>(factor, s);
  }
  __device__ void add(int stage) {
    add_product<T, kHeadSize, kBox>(dq, factor, group.columns_of(stage));
    commit_products();
  }
  __device__ bool is_last() const {
    return key == last_key;
  }
  __device__ int advance() {
    const int before = group.cursor.stage;
    group.cursor.advance();
    key -= kBox;
    return before;
  }
  __device__ void free(int stage) const {
    release(group.memory.channels.ring.empty + stage, group.lane);
  }
  __device__ void pin_scores() {
    pin(s);
  }
  __device__ void pin_gradients() {
    pin(dp);
  }
  __device__ void pin_sums() {
    pin(dq);
  }
};

template <class SizesT>
struct QueryHalf {
  using S = SizesT;
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize, kFreeing = kGroupWarps;

  static __device__ unsigned* counter(const BackwardMaps& maps) { return maps.next_query_tile; }
  struct Order {
    const Sequences& sequences;
    __device__ Tile find(unsigned index) const { return find_queries<S::kRows>(sequences, index); }
  };
  static __device__ int first_right_head(const Sequences& sequences, const Tile& tile) {
    return sequences.key_head(tile.head);
  }
  static __device__ int right_heads(const Sequences&) { return 1; }
  static __device__ int blocks_until(const Tile& tile, int query, bool causal) {
    return (tile.visible_keys(query, causal) + kBox - 1) / kBox;
  }
  static __device__ int first_block(const Tile& tile, bool, int window) {
    return tile.first_key(tile.first, window) / kBox;
  }
  static __device__ int end_block(const Tile& tile, bool causal, int) {
    return blocks_until(tile, tile.first + tile.rows - 1, causal);
  }
  static __device__ void copy_left(const BackwardMaps& maps, const Tile& tile, std::byte* to, Barrier* full) {
    const int row = tile.q0 + tile.first;
    copy_tile<S::kRows, kHeadSize>(to, maps.q, full, tile.head, row);
    copy_tile<S::kRows, kHeadSize>(to + S::LeftTile::kBytes, maps.dout, full, tile.head, row);
  }
  static __device__ void copy_block(const BackwardMaps& maps, const BackwardMemory<S>& memory,
                                    const Tile& tile, int head, int block, int stage) {
    Barrier* const full = memory.channels.ring.full + stage;
    std::byte* const to = memory.stages + stage * S::kStageBytes;
    const int row = tile.k0 + block * kBox;
    arrive_expecting(full, S::kStageBytes);
    copy_tile<kBox, kHeadSize>(to, maps.k, full, head, row);
    copy_tile<kBox, kHeadSize>(to + S::RightTile::kBytes, maps.v, full, head, row);
  }

  // The group's rows of a job. q_rows has q and dout, then dq.
  static __device__ void do_job(BackwardGroup<S>& group, const Tile& tile, std::byte* q_rows) {
    const BackwardParameters& p = group.p;
    const Lane& lane = group.lane;
    const int begin = first_block(tile, group.causal, group.window());
    const int blocks = end_block(tile, group.causal, group.window());
    const int first = tile.first + lane.group * kBox;  // the group's first row
    const int rows = min(max(tile.rows - lane.group * kBox, 0), kBox);
    const int mine_begin = rows > 0 ? tile.first_key(first, group.window()) / kBox : begin;
    const int mine = rows > 0 ? blocks_until(tile, first + rows - 1, group.causal) : begin;
    const int common_begin = tile.first_key(first + rows - 1, group.window());
    const int common = tile.visible_keys(first, group.causal);
    const RowsOfThread of_rows = find_statistics<S>(p, tile, first, rows, lane);

    float dq[kHeadSize / 2] = {};
    pin(dq);
    const auto skip_block = [&] {  // that only the other groups see
      group.wait_for_stage();
      release(group.memory.channels.ring.empty + group.cursor.stage, lane);
      group.cursor.advance();
    };
    for (int i = mine; i < blocks; ++i) skip_block();
    if (mine > mine_begin) {
      const typename KeyBlocks<S>::Queries q(q_rows, lane);
      const typename KeyBlocks<S>::Gradients dout(q_rows + S::LeftTile::kBytes, lane);
      float s[32], dp[32];
      std::uint32_t factor[4][4];
      KeyBlocks<S> keys{
          group, tile, of_rows, dq, first, common_begin, common, (mine - 1) * kBox, mine_begin * kBox,
          q,     dout, s,       dp, factor};
      keys.clear_end();
      sum_blocks(keys);
    }
    for (int i = begin; i < mine_begin; ++i) skip_block();
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) dq[i] *= p.scale;
    store_gradient<T, kHeadSize>(group, p.dq, tile.q0 + first, tile.head, rows, dq,
                                 {q_rows, S::LeftTile::kSlabBytes});
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    backward_query_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_backward<QueryHalf<S>>(maps);
#endif
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
