// The keys' half of the backward: dk and dv of a key head, over the query heads that see it.
#pragma once

#include "ops/attention/cuda/sm90/backward.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// The blocks of queries of one head that see a group's keys, from the last to the first. Scores and their
// gradients are transposed: one row per key. Arrays are references to local variables; as members, they would
// keep the compiler from holding the other members in registers.
template <class S>
struct QueryBlocks {
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize;
  using Keys = LeftRows<S, kHeadSize == 64>;
  BackwardGroup<S>& group;
  const Tile& tile;
  float (&dk)[kHeadSize / 2], (&dv)[kHeadSize / 2];
  int first, rows;  // the group's keys
  int query, last_query;
  const Keys &k, &v;
  float (&s)[32], (&dp)[32];
  std::uint32_t (&probabilities)[4][4], (&gradients)[4][4];

  // Clears the end of the last block, which may have rows of the next sequence.
  __device__ void clear_end() const {
    if (query + kBox <= tile.Lq) return;
    std::byte* const q_tile = group.stage();
    group.wait_for_stage();
    clear_rows<kBox, kHeadSize>(q_tile, tile.Lq - query, group.lane);
    clear_rows<kBox, kHeadSize>(q_tile + S::RightTile::kBytes, tile.Lq - query, group.lane);
  }
  __device__ void multiply() { multiply_block(group, s, k, dp, v); }
  // Zeros if the query does not see the key, whatever the number is.
  __device__ void mask(float (&x)[32]) const {
    if ((!group.causal || first + rows - 1 <= query + tile.offset()) &&
        query + kBox <= tile.end_query(first, group.window())) {
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from =
          group.causal ? first + group.lane.row(r) - tile.offset() - query - group.lane.column() : -kBox;
      const int until =
          tile.end_query(first + group.lane.row(r), group.window()) - query - group.lane.column();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int column = i / 4 * 8 + i % 2;
        if (i / 2 % 2 == r) x[i] = column >= from && column < until ? x[i] : 0.0f;
      }
    }
  }
  __device__ const RowStatistics* statistics() const {
    return group.memory.statistics + group.cursor.stage * kBox + group.lane.column();
  }
  __device__ void exponentiate() {
    const RowStatistics* const of = statistics();
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 pair = *reinterpret_cast<const float4*>(of + i / 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i + e] = exp2_fast(fmaf(s[i + e], group.scale2, e % 2 ? -pair.z : -pair.x));
      }
    }
    mask(s);
  }
  __device__ void differentiate() {
    const RowStatistics* const of = statistics();
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 pair = *reinterpret_cast<const float4*>(of + i / 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[i + e] = s[i + e] * (dp[i + e] - (e % 2 ? pair.w : pair.y));
    }
    mask(dp);
  }
  __device__ void pack_probabilities() {
    pack_factor<T, kBox>(probabilities, s);
  }
  __device__ void pack_gradients() {
    pack_factor<T, kBox>(gradients, dp);
  }
  __device__ void pack() {
    pack_probabilities(), pack_gradients();
  }
  __device__ void add_values(int stage) {
    add_product<T, kHeadSize, kBox>(dv, probabilities,
                                    group.columns_of(stage) + described(S::RightTile::kBytes));
  }
  __device__ void add_keys(int stage) {
    add_product<T, kHeadSize, kBox>(dk, gradients, group.columns_of(stage));
  }
  __device__ void add(int stage) {
    add_values(stage);
    add_keys(stage);
    commit_products();
  }
  __device__ bool is_last() const {
    return query == last_query;
  }
  __device__ int advance() {
    const int before = group.cursor.stage;
    group.cursor.advance();
    query -= kBox;
    return before;
  }
  __device__ void free(int stage) const {
    arrive(group.memory.channels.ring.empty + stage);
  }
  __device__ void pin_scores() {
    pin(s);
  }
  __device__ void pin_gradients() {
    pin(dp);
  }
  __device__ void pin_sums() {
    pin(dk), pin(dv);
  }

  // Steps of sum_wide_blocks().
  __device__ void multiply_scores() {
    group.wait_for_stage();
    begin_products();
    k.multiply(s, group.rows_of_stage());
    commit_products();
  }
  __device__ void add_values_and_differentiate() {
    begin_products();
    v.multiply(dp, group.rows_of_stage() + described(S::RightTile::kBytes));
    commit_products();
    add_values(group.cursor.stage);
    commit_products();
    wait_for_products<1>();
    pin(dp);
    differentiate();
    pack_gradients();
    wait_for_products<0>();
    pin(dv);
  }
};

// Replaces sum_blocks() at head size 128. In addition to two sums of 128 columns, there are registers for the
// scores of one block or for their gradients, but not for both. So the next scores are multiplied and
// exponentiated during the sum of dk.
template <class S>
__device__ void sum_wide_blocks(QueryBlocks<S>& blocks) {
  blocks.multiply_scores();
  wait_for_products<0>();
  blocks.pin_scores();
  blocks.exponentiate();
  blocks.pack_probabilities();
  blocks.add_values_and_differentiate();
  while (!blocks.is_last()) {
    const int before = blocks.advance();
    blocks.multiply_scores();
    blocks.add_keys(before);
    commit_products();
    wait_for_products<1>();
    blocks.pin_scores();
    blocks.exponentiate();
    blocks.pack_probabilities();
    wait_for_products<0>();
    pin(blocks.dk);
    blocks.free(before);
    blocks.add_values_and_differentiate();
  }
  begin_products();
  blocks.add_keys(blocks.group.cursor.stage);
  commit_products();
  wait_for_products<0>();
  pin(blocks.dk);
  blocks.free(blocks.group.cursor.stage);
  blocks.group.cursor.advance();
}

template <class SizesT>
struct KeyHalf {
  using S = SizesT;
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize, kFreeing = kGroupThreads;

  static __device__ unsigned* counter(const BackwardMaps& maps) { return maps.next_key_tile; }
  using Order = KeyOrder<S::kRows>;
  static __device__ int first_right_head(const Sequences& sequences, const Tile& tile) {
    return tile.head * sequences.group;
  }
  static __device__ int right_heads(const Sequences& sequences) { return sequences.group; }
  // Key j is seen by the queries from j − offset on. Blocks of queries are counted from the first query of
  // the sequence.
  static __device__ int blocks_until(const Tile& tile, int key, int window) {
    return (tile.end_query(key, window) + kBox - 1) / kBox;
  }
  static __device__ int end_block(const Tile& tile, bool, int window) {
    return blocks_until(tile, tile.first + tile.rows - 1, window);
  }
  static __device__ int first_block_of(const Tile& tile, int key, bool causal, int window) {
    return min(causal ? max(key - tile.offset(), 0) / kBox : 0, end_block(tile, causal, window));
  }
  static __device__ int first_block(const Tile& tile, bool causal, int window) {
    return first_block_of(tile, tile.first, causal, window);
  }
  static __device__ void copy_left(const BackwardMaps& maps, const Tile& tile, std::byte* to, Barrier* full) {
    const int row = tile.k0 + tile.first;
    copy_tile<S::kRows, kHeadSize>(to, maps.k, full, tile.head, row);
    copy_tile<S::kRows, kHeadSize>(to + S::LeftTile::kBytes, maps.v, full, tile.head, row);
  }
  static __device__ void copy_block(const BackwardMaps& maps, const BackwardMemory<S>& memory,
                                    const Tile& tile, int head, int block, int stage) {
    Barrier* const full = memory.channels.ring.full + stage;
    std::byte* const to = memory.stages + stage * S::kStageBytes;
    const int row = tile.q0 + block * kBox;
    arrive_expecting(full, S::kStageBytes + S::kStatisticsBytes);
    copy_tile<kBox, kHeadSize>(to, maps.q, full, head, row);
    copy_bytes(memory.statistics + stage * kBox, statistics_of(maps.p, tile, head) + block * kBox,
               S::kStatisticsBytes, full);
    copy_tile<kBox, kHeadSize>(to + S::RightTile::kBytes, maps.dout, full, head, row);
  }

  // Adds what the queries of the next head in the ring contribute to the group's rows of a job.
  static __device__ void add_head(BackwardGroup<S>& group, const Tile& tile, std::byte* k_rows,
                                  float (&dk)[kHeadSize / 2], float (&dv)[kHeadSize / 2]) {
    const Lane& lane = group.lane;
    const int begin = first_block(tile, group.causal, group.window()),
              end = end_block(tile, group.causal, group.window());
    const int first = tile.first + lane.group * kBox;  // the group's first row
    const int rows = rows_of(group, tile);
    const int mine = rows > 0 ? first_block_of(tile, first, group.causal, group.window()) : end;
    const int mine_end = rows > 0 ? blocks_until(tile, first + rows - 1, group.window()) : end;
    for (int i = mine_end; i < end; ++i) skip_block(group);
    if (mine < mine_end) {
      const typename QueryBlocks<S>::Keys k(k_rows, lane), v(k_rows + S::LeftTile::kBytes, lane);
      float s[32], dp[32];
      std::uint32_t probabilities[4][4], gradients[4][4];
      QueryBlocks<S> queries{group,       tile, dk, dv, first, rows,          (mine_end - 1) * kBox,
                             mine * kBox, k,    v,  s,  dp,    probabilities, gradients};
      queries.clear_end();
      if constexpr (kHeadSize == 64) {
        sum_blocks(queries);
      } else {
        sum_wide_blocks(queries);
      }
    }
    for (int i = begin; i < mine; ++i) skip_block(group);
  }
  // Skips a block of queries that see only other groups' keys.
  static __device__ void skip_block(BackwardGroup<S>& group) {
    group.wait_for_stage();
    arrive(group.memory.channels.ring.empty + group.cursor.stage);
    group.cursor.advance();
  }
  static __device__ int rows_of(const BackwardGroup<S>& group, const Tile& tile) {
    return min(max(tile.rows - group.lane.group * kBox, 0), kBox);
  }

  // The group's rows of a job. k_rows has k and v, then dk and dv.
  static __device__ void do_job(BackwardGroup<S>& group, Tile tile, std::byte* k_rows) {
    const BackwardParameters& p = group.p;
    float dk[kHeadSize / 2] = {}, dv[kHeadSize / 2] = {};
    pin(dk), pin(dv);
#pragma unroll 1
    for (int head = 0; head < right_heads(p.sequences); ++head) {
      add_head(group, tile, k_rows, dk, dv);
      renew(group, tile);
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) dk[i] *= p.scale;
    const int key = tile.k0 + tile.first + group.lane.group * kBox, rows = rows_of(group, tile);
    store_gradient<T, kHeadSize>(group, p.dk, key, tile.head, rows, dk, {k_rows, S::LeftTile::kSlabBytes});
    store_rows<T, kHeadSize>(p.dv, key, tile.head, rows, dv,
                             {k_rows + S::LeftTile::kBytes, S::LeftTile::kSlabBytes}, group.lane);
  }
  // Lets the compiler take these for new numbers, so that it computes everything else from them again for
  // each head. The sums leave no registers to keep it in.
  static __device__ void renew(BackwardGroup<S>& group, Tile& tile) {
    asm volatile(""
                 : "+r"(group.lane.thread), "+r"(group.lane.group), "+r"(group.stages), "+r"(group.columns));
    asm volatile("" : "+r"(tile.first), "+r"(tile.rows), "+r"(tile.Lq), "+r"(tile.Lk));
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    backward_key_sm90(const __grid_constant__ BackwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_backward<KeyHalf<S>>(maps);
#endif
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
