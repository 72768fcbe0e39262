// The forward of flash_sm90 and flash_packed. Tiles come through the tensor copy engine
// (forward_producer.cuh). Groups of four warps multiply them (wgmma), 64 queries each, and keep the scores in
// registers from one product to the next.
//
// A shape S has these constants:
//   kHeads     heads of kHeadSize next to each other in a tile, each for its own groups
//   kResident  thread blocks on a multiprocessor
//   kWindow    queries see the last keys only
//   kPacked    a thread block takes whole runs of kRows packed rows, with every tile of a text that begins
//              there: one of a long text, or several short texts. A search for one row finds the tile, and
//              the number of runs does not depend on the texts. Texts of up to kShort tokens go to single
//              warps.
//   kShares    groups that share the queries of a tile. Each has kKeys of each block of keys, and the first
//              group adds the others' sums to its own (forward_shares.cuh).
#pragma once

#include "ops/attention/cuda/sm90/forward_shares.cuh"
#include "ops/attention/cuda/sm90/launch.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// The groups' warps attend to short texts, 16 queries of a head per turn.
template <class S>
__device__ void attend_short_texts(const ForwardParameters& p, const Tile& job, float scale2) {
  constexpr int kWarps = S::kGroups * kGroupWarps, kQueries = WarpQueries<typename S::T, S::kHeadSize>::kRows;
  const int warp = static_cast<int>(threadIdx.x / 32);
  int turn = 0;
#pragma unroll 1
  for (int s = job.sequence; s < p.sequences.count; ++s) {
    Tile tile = whole_sequence(p.sequences, s);
    if (tile.q0 >= job.first + S::kRows) break;
    if (!is_short<S>(tile)) continue;
#pragma unroll 1
    for (; tile.first < tile.Lq; tile.first += kQueries) {
      tile.rows = min(kQueries, tile.Lq - tile.first);
#pragma unroll 1
      for (int side = 0; side < S::kHeads; ++side, ++turn) {
        tile.head = job.head * S::kHeads + side;
        if (turn % kWarps == warp && tile.head < p.sequences.heads) {
          attend_by_warp<typename S::T, S::kHeadSize>(p, tile, scale2);
        }
      }
    }
  }
}

// A group's state from job to job.
template <class SizesT>
struct ForwardGroup {
  using S = SizesT;
  static constexpr int kShareBytes = S::kKeys * 128;  // from one share's rows in a slab to the next share's
  const ForwardParameters& p;
  const MaskWords& mask;
  const ForwardMemory<S>& memory;
  Lane lane;
  bool causal = p.sequences.causal;
  // A score is kept as the product, or with a bias as the sum.
  float scale = S::kPairs && p.bias.data ? 1.0f : p.scale, scale2 = scale * kLog2e;
  int side = lane.group % S::kHeads, share = lane.group / S::kHeads % S::kShares;
  int row_group = lane.group / (S::kHeads * S::kShares);
  std::uint32_t k_tiles = of_side(describe_lower(memory.k + share * kShareBytes));
  std::uint32_t v_tiles = of_side(describe_lower(memory.v + share * kShareBytes, S::KeyTile::kSlabBytes));
  Cursor<S::kStages> cursor = {};
  static_assert(S::kShares == 1 || S::kHeads * S::kHeadSize == 64);  // a tile of one slab

  // The tile's description from the columns of the group's head on. It is the same in a whole warp.
  __device__ std::uint32_t of_side(std::uint32_t tile) const {
    return __shfl_sync(~0u, tile + described(side * S::kHeadSize * 2), 0);
  }
  // Skips a block of keys and values that only other groups see.
  __device__ void skip_block() {
    auto& keys = memory.channels.keys;
    auto& values = memory.channels.values;
    wait(keys.full + cursor.stage, cursor.phase);
    release(keys.empty + cursor.stage, lane);
    if constexpr (S::kPairs) {
      if (p.bias.data) {
        auto& bias = memory.channels.bias;
        wait(bias.full + cursor.stage, cursor.phase);
        release(bias.empty + cursor.stage, lane);
      }
    }
    wait(values.full + cursor.stage, cursor.phase);
    release(values.empty + cursor.stage, lane);
    cursor.advance();
  }
};

// The blocks of keys and values that a group's queries see, from the last to the first. Arrays are references
// to local variables; as members, they would keep the compiler from holding the other members in registers.
template <class S>
struct SeenBlocks {
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys, kBlockKeys = S::kShares * kKeys;
  static constexpr int kKeyBytes = S::KeyTile::kBytes;
  ForwardGroup<S>& group;
  const Tile& tile;
  float (&o)[kHeadSize / 2], (&largest)[2], (&sum)[2];
  float (&s)[kKeys / 2], (&shrink)[2];
  std::uint32_t (&factor)[kKeys / 16][4];
  std::uint32_t q_tile;
  int first;                 // the group's first query
  int common_begin, common;  // all of them see the keys from the one to the other
  int last_key;              // the key at which the last block begins
  int key;
  std::uint32_t word = 0;  // of the mask, for the block at `key`; loaded a block ahead

  __device__ void multiply_keys() {
    const int stage = group.cursor.stage;
    wait(group.memory.channels.keys.full + stage, group.cursor.phase);
    begin_products();
    multiply_rows<T, kHeadSize, kKeys>(s, q_tile, S::QueryTile::kSlabBytes,
                                       group.k_tiles + stage * described(kKeyBytes), S::KeyTile::kSlabBytes);
    commit_products();
  }
  __device__ void multiply_values(int stage, int phase) {
    wait(group.memory.channels.values.full + stage, phase);
    begin_products();
    add_product<T, kHeadSize, kKeys>(o, factor, group.v_tiles + stage * described(kKeyBytes));
    commit_products();
  }
  __device__ std::uint32_t mask_word(int from_key) const {
    return group.mask.of(tile.sequence, first, from_key, group.lane.thread);
  }
  // Applies the bias and the mask of this block.
  __device__ void change_by_pairs() {
    if (group.p.bias.data) {
      auto& bias = group.memory.channels.bias;
      const int stage = group.cursor.stage;
      wait(bias.full + stage, group.cursor.phase);
      BiasTiles<S>(group.p, group.memory.bias, stage).add_to(s, group.row_group, group.side, group.lane);
      release(bias.empty + stage, group.lane);
    }
    if (group.mask.data) {
      hide_unseen(s, word);
      word = mask_word(key - kBlockKeys);
    }
  }
  // Sets the scores of unseen keys to −∞.
  __device__ void mask() {
    if (key + kKeys <= common) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int end = tile.visible_keys(first + group.lane.row(r), group.causal) - key - group.lane.column();
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 < end ? s[i] : -INFINITY;
      }
    }
  }
  // The same for keys before the window.
  __device__ void mask_old() {
    if (key >= common_begin) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = tile.first_key(first + group.lane.row(r), window_of<S>(group.p.sequences)) - key -
                        group.lane.column();
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 >= begin ? s[i] : -INFINITY;
      }
    }
  }
  // Turns the scores of a block into probabilities of the largest score so far. `shrink` is the factor for
  // the earlier sums.
  __device__ void exponentiate() {
    if constexpr (S::kPairs) change_by_pairs();
    mask();
    if constexpr (S::kWindow) mask_old();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (i / 2 % 2 == r) top = fmaxf(top, s[i]);
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * group.scale2;
      shrink[r] = exp2_fast(largest[r] * group.scale2 - base);
      largest[r] = top;
      float part = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (i / 2 % 2 == r) part += s[i] = exp2_fast(fmaf(s[i], group.scale2, -base));
      }
      sum[r] = sum[r] * shrink[r] + part;
    }
  }
  __device__ bool has_more() const {
    return S::kWindow ? key > last_key : key >= kBlockKeys;
  }
  // Clears the end of the last block, which may have rows of the next sequence.
  __device__ void clear_end() {
    if (key + kKeys <= tile.Lk) return;
    const int stage = group.cursor.stage;
    wait(group.memory.channels.values.full + stage, group.cursor.phase);
    clear_rows<kKeys, S::kHeads * kHeadSize>(
        group.memory.v + stage * kKeyBytes + group.share * ForwardGroup<S>::kShareBytes,
        max(tile.Lk - key, 0), group.lane);
  }
};

// Attends to a group's blocks. The scores of one block are exponentiated while the values of the block before
// are multiplied.
template <class S>
__device__ void attend_blocks(SeenBlocks<S>& blocks) {
  using T = typename S::T;
  ForwardGroup<S>& group = blocks.group;
  auto& keys = group.memory.channels.keys;
  auto& values = group.memory.channels.values;
  if constexpr (S::kPairs) blocks.word = blocks.mask_word(blocks.key);
  blocks.multiply_keys();
  wait_for_products<0>();
  pin(blocks.s);
  release(keys.empty + group.cursor.stage, group.lane);
  blocks.exponentiate();
  pack_factor<T, S::kKeys>(blocks.factor, blocks.s);
  blocks.clear_end();
  while (blocks.has_more()) {
    const Cursor<S::kStages> before = group.cursor;
    group.cursor.advance();
    blocks.multiply_keys();
    blocks.multiply_values(before.stage, before.phase);
    blocks.key -= SeenBlocks<S>::kBlockKeys;
    wait_for_products<1>();
    pin(blocks.s);
    release(keys.empty + group.cursor.stage, group.lane);
    blocks.exponentiate();
    wait_for_products<0>();
    pin(blocks.o);
    release(values.empty + before.stage, group.lane);
#pragma unroll
    for (int i = 0; i < S::kHeadSize / 2; ++i) blocks.o[i] *= blocks.shrink[i / 2 % 2];
    pack_factor<T, S::kKeys>(blocks.factor, blocks.s);
  }
  blocks.multiply_values(group.cursor.stage, group.cursor.phase);
  wait_for_products<0>();
  pin(blocks.o);
  release(values.empty + group.cursor.stage, group.lane);
  group.cursor.advance();
}

// Divides the sums of values by the sums of probabilities, and keeps lse.
template <class S>
__device__ void divide_sums(float (&o)[S::kHeadSize / 2], const float (&largest)[2], const float (&sum)[2],
                            const ForwardGroup<S>& group, int head, int query, int rows) {
  const ForwardParameters& p = group.p;
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    inverse[r] = sum[r] == 0 ? 0.0f : 1 / sum[r];
    if (p.lse && group.lane.column() == 0 && group.lane.row(r) < rows) {
      p.lse[static_cast<std::int64_t>(head) * p.sequences.Nq + query + group.lane.row(r)] =
          sum[r] == 0 ? -INFINITY : fmaf(largest[r], group.scale, logf(sum[r]));
    }
  }
#pragma unroll
  for (int i = 0; i < S::kHeadSize / 2; ++i) o[i] *= inverse[i / 2 % 2];
}

// Attends to the group's queries of a job.
template <class S>
__device__ void attend(ForwardGroup<S>& group, const Tile& tile, const JobCursor& job) {
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys, kBlockKeys = S::kShares * kKeys;
  const ForwardParameters& p = group.p;
  const ForwardMemory<S>& memory = group.memory;
  const int window = window_of<S>(p.sequences);
  const int begin = tile.first_key(tile.first, window) / kBlockKeys;
  const int blocks = key_blocks<kBlockKeys>(tile, tile.first + tile.rows - 1, group.causal);
  const int head = tile.head * S::kHeads + group.side, first = tile.first + group.row_group * kBox;
  const int rows = head < p.sequences.heads ? min(max(tile.rows - group.row_group * kBox, 0), kBox) : 0;
  const int mine_begin = rows > 0 ? tile.first_key(first, window) / kBlockKeys : begin;
  const int mine = rows > 0 ? key_blocks<kBlockKeys>(tile, first + rows - 1, group.causal) : begin;
  const int common = tile.visible_keys(first, group.causal), query = tile.q0 + first;
  std::byte* const q_rows =
      memory.q + (S::kPlaces == 1 ? 0 : job.stage) * S::QueryTile::kBytes + group.row_group * kBoxBytes;
  const std::uint32_t q_tile = group.of_side(describe_lower(q_rows));

  float o[kHeadSize / 2] = {};
  pin(o);
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  for (int i = mine; i < blocks; ++i) group.skip_block();
  if (mine > mine_begin) {
    float s[kKeys / 2], shrink[2];
    std::uint32_t factor[kKeys / 16][4];
    SeenBlocks<S> seen{group,
                       tile,
                       o,
                       largest,
                       sum,
                       s,
                       shrink,
                       factor,
                       q_tile,
                       first,
                       tile.first_key(first + rows - 1, window),
                       common,
                       mine_begin * kBlockKeys + group.share * kKeys,
                       (mine - 1) * kBlockKeys + group.share * kKeys};
    attend_blocks(seen);
  }
  for (int i = begin; i < mine_begin; ++i) group.skip_block();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
  }
  if constexpr (S::kShares > 1) {
    if (group.share > 0) return hand_over_share<S>(o, largest, sum, memory, group.share, job, group.lane);
    add_shares<S>(o, largest, sum, memory, group.scale2, job, group.lane);
  }
  divide_sums(o, largest, sum, group, head, query, rows);
  store_rows<T, kHeadSize>(p.out, query, head, rows, o,
                           {q_rows, S::QueryTile::kSlabBytes, group.side * kHeadSize / 8}, group.lane);
  fence_stores_to_shared();  // before the copy of the job after next
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    forward_sm90(const __grid_constant__ ForwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 shared[];
  const ForwardMemory<S> memory(align_shared(shared));
  Jobs& jobs = memory.channels.jobs;
  gpu::let_next_kernel_begin();
  memory.initialize();
  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_forward<S>(maps, memory, static_cast<int>(threadIdx.x / 32) - S::kGroups * kGroupWarps);
    return;
  }

  take_registers<S::kGroupRegisters>();
  gpu::wait_for_kernels_before();
  ForwardGroup<S> group{maps.p, maps.mask, memory, Lane()};
  for (JobCursor job;; job.advance()) {
    wait(jobs.full + job.stage, job.phase);
    const Tile tile = posted_tile(jobs, job);
    if (tile.rows == 0) return;
    if (S::kPacked && tile.rows < 0) {
      if constexpr (S::kPacked) attend_short_texts<S>(maps.p, tile, group.scale2);
    } else {
      attend(group, tile, job);
    }
    release(jobs.empty + job.stage, group.lane);
  }
#endif
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
