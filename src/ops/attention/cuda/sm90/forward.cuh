// The forward of flash_sm90 and flash_packed: tiles come through the tensor copy engine; groups of four warps
// multiply them (wgmma), 64 queries each. Scores stay in registers from one product to the next.
//
// A shape S has kHeads heads of kHeadSize side by side in a tile, each for groups of its own, and kResident
// blocks on a multiprocessor. kPacked: a block takes whole runs of kRows packed rows, every tile of a text
// that begins there, be it one of a long text or several short texts. So a tile is found by a search for one
// row, and there are as many runs whatever the texts are. Texts of up to kShort tokens are left to single
// warps. kShares: so many groups have a tile's queries together, kKeys of each block of keys each, and the
// first of them adds up what they have found.
#pragma once

#include "ops/attention/cuda/sm90/launch.cuh"
#include "ops/attention/cuda/warp_queries.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

struct ForwardMaps {
  CUtensorMap q, k, v;
  ForwardParameters p;
  unsigned* next_tile;
};

// What a group hands to the first of those that share its queries: a thread's sums, and of its two rows the
// maximum and the sum of probabilities.
constexpr int shared_numbers(int head_size) {
  return head_size / 2 + 4;
}
constexpr std::size_t shared_sums_bytes(int shares, int head_size) {
  return sizeof(float) * kGroupThreads * (shares - 1) * shared_numbers(head_size);
}

// A block's shared memory.
template <class S>
struct ForwardMemory {
  std::byte *q, *k, *v;  // places; stages
  float* sums;           // of groups that share queries
  typename S::Channels& channels;
  __device__ explicit ForwardMemory(std::byte* shared)
      : q(shared),
        k(q + S::kPlaces * S::QueryTile::kBytes),
        v(k + S::kStages * S::KeyTile::kBytes),
        sums(reinterpret_cast<float*>(v + S::kStages * S::KeyTile::kBytes)),
        channels(*reinterpret_cast<typename S::Channels*>(v + S::kStages * S::KeyTile::kBytes +
                                                          shared_sums_bytes(S::kShares, S::kHeadSize))) {}
};

template <class S>
__device__ __host__ unsigned head_tiles_of(const Sequences& sequences) {
  return static_cast<unsigned>((sequences.heads + S::kHeads - 1) / S::kHeads);
}
template <class S>
__device__ __host__ unsigned runs_of(const Sequences& sequences) {
  return static_cast<unsigned>((sequences.Nq + S::kRows - 1) / S::kRows) * head_tiles_of<S>(sequences);
}
template <class S>
__device__ bool is_short(const Tile& tile) {
  return max(tile.Lq, tile.Lk) <= S::kShort;
}

// Rows of all heads of a tile; `head_tile` counts in tiles' heads.
template <class S, int kRows>
__device__ void copy_heads(std::byte* to, const CUtensorMap& map, Barrier* barrier, int head_tile, int row) {
  copy_tile<kRows, S::kHeads * S::kHeadSize>(to, map, barrier, S::kHeads == 1 ? head_tile : 0, row,
                                             S::kHeads == 1 ? 0 : head_tile * S::kHeads * S::kHeadSize);
}

// What a run of short texts reads, to the second-level cache, by a warp.
template <class S>
__device__ void prefetch_run(const ForwardParameters& p, const Tile& shorts) {
  const int head = shorts.head * S::kHeads;
  for (int i = static_cast<int>(threadIdx.x % 32); i < S::kRows; i += 32) {
    const int query = shorts.q0 + i, key = shorts.k0 + i;
    if (query < p.sequences.Nq) prefetch(p.q.at(query, head));
    if (key < p.sequences.Nk) prefetch(p.k.at(key, head)), prefetch(p.v.at(key, head));
  }
}

template <int kKeys>
__device__ int key_blocks(const Tile& tile, int query, bool causal) {
  return (tile.visible_keys(query, causal) + kKeys - 1) / kKeys;
}

template <class S>
__device__ void copy_queries(const ForwardMaps& maps, const ForwardMemory<S>& memory, const Tile& tile,
                             int place, Barrier* full) {
  arrive_expecting(full, S::QueryTile::kBytes);
  copy_heads<S, S::kRows>(memory.q + place * S::QueryTile::kBytes, maps.q, full, tile.head,
                          tile.q0 + tile.first);
}

// By the posting warp, in place of post_jobs(): one job for all short texts of a run, whose tile has negative
// rows, the run's beginning as first, and is of the first such text.
template <class S>
__device__ void post_runs(const ForwardMaps& maps, const ForwardMemory<S>& memory) {
  const Sequences& sequences = maps.p.sequences;
  Jobs& jobs = memory.channels.jobs;
  JobCursor job;
  const auto post = [&](const Tile& tile) {
    gpu::wait_for_kernels_before();
    if (threadIdx.x % 32 == 0) {
      wait(jobs.empty + job.stage, job.phase ^ 1);
      jobs.tiles[job.stage] = tile;
      arrive(jobs.posted + job.stage);
      if (tile.rows > 0) {
        copy_queries(maps, memory, tile, job.stage, jobs.full + job.stage);
      } else {
        arrive(jobs.full + job.stage);
      }
    }
    job.advance();
  };
  const unsigned head_tiles = head_tiles_of<S>(sequences), runs = runs_of<S>(sequences);
  for (unsigned run = blockIdx.x; run < runs; run += gridDim.x) {
    const int begin = static_cast<int>(run / head_tiles) * S::kRows, end = begin + S::kRows;
    Tile shorts{};
    for (int s = sequence_of(sequences.q, sequences.count, sequences.Nq, begin); s < sequences.count; ++s) {
      Tile tile = whole_sequence(sequences, s);
      if (tile.q0 >= end) break;
      tile.head = static_cast<int>(run % head_tiles);
      tile.first = (max(begin - tile.q0, 0) + S::kRows - 1) / S::kRows * S::kRows;
      if (tile.first >= tile.Lq) continue;
      if (is_short<S>(tile)) {
        if (shorts.rows == 0) shorts = tile, shorts.first = begin, shorts.rows = -1;
        continue;
      }
      tile.rows = min(S::kRows, tile.Lq - tile.first);
      post(tile);
    }
    if (shorts.rows != 0) {
      gpu::wait_for_kernels_before();
      prefetch_run<S>(maps.p, shorts);
      post(shorts);
    }
  }
  post({});
}

// By the groups' warps, 16 queries of a head each in turn.
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

// By the two copying warps.
template <class S>
__device__ void copy_forward(const ForwardMaps& maps, const ForwardMemory<S>& memory, int warp) {
  constexpr int kKeys = S::kShares * S::kKeys;
  const Sequences& sequences = maps.p.sequences;
  typename S::Channels& channels = memory.channels;
  if (warp == 0) {
    if constexpr (S::kPacked) {
      post_runs(maps, memory);
    } else {
      if (maps.next_tile) gpu::wait_for_kernels_before();  // it is theirs to clear
      Sequences of_tiles = sequences;
      of_tiles.heads = static_cast<int>(head_tiles_of<S>(sequences));
      post_jobs<S::kPlaces>(
          channels.jobs, maps.next_tile,
          [&](unsigned index) { return find_queries<S::kRows>(of_tiles, index); },
          [&](const Tile& tile, int place, Barrier* full) {
            gpu::wait_for_kernels_before();
            copy_queries(maps, memory, tile, place, full);
          });
    }
  } else if (warp == 1 && threadIdx.x % 32 == 0) {
    gpu::wait_for_kernels_before();
    Cursor<S::kStages> cursor;
    const auto copy = [&](std::byte* tiles, Ring<S::kStages>& ring, const CUtensorMap& map, int head,
                          int row) {
      wait(ring.empty + cursor.stage, cursor.phase ^ 1);
      arrive_expecting(ring.full + cursor.stage, S::KeyTile::kBytes);
      copy_heads<S, kKeys>(tiles + cursor.stage * S::KeyTile::kBytes, map, ring.full + cursor.stage, head,
                           row);
    };
    stream_jobs(channels.jobs, [&](const Tile& tile) {  // from the last keys that it sees to the first
      if (tile.rows < 0) return;
      const int blocks = key_blocks<kKeys>(tile, tile.first + tile.rows - 1, sequences.causal);
#pragma unroll 1
      for (int block = blocks - 1; block >= 0; --block) {
        copy(memory.k, channels.keys, maps.k, tile.head, tile.k0 + block * kKeys);
        copy(memory.v, channels.values, maps.v, tile.head, tile.k0 + block * kKeys);
        cursor.advance();
      }
    });
  }
}

// By a group that shares a tile's queries with the first one, when it has met its keys: its sums are handed
// over. Jobs alternate in their stage and so in the phase of what is handed over once in each.
template <class S>
__device__ void hand_over_share(const float (&o)[S::kHeadSize / 2], const float (&largest)[2],
                                const float (&sum)[2], const ForwardMemory<S>& memory, int share,
                                const JobCursor& job, const Lane& lane) {
  constexpr int kSums = S::kHeadSize / 2, kNumbers = shared_numbers(S::kHeadSize);
  float* const mine = memory.sums + (share - 1) * kNumbers * kGroupThreads + lane.thread;
  wait(&memory.channels.sums_empty, job.stage ^ 1);
#pragma unroll
  for (int i = 0; i < kSums; ++i) mine[i * kGroupThreads] = o[i];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    mine[(kSums + r) * kGroupThreads] = largest[r];
    mine[(kSums + 2 + r) * kGroupThreads] = sum[r];
  }
  arrive(&memory.channels.sums_full);
}

// By the first group: its sums become those of all.
template <class S>
__device__ void add_shares(float (&o)[S::kHeadSize / 2], float (&largest)[2], float (&sum)[2],
                           const ForwardMemory<S>& memory, float scale2, const JobCursor& job,
                           const Lane& lane) {
  constexpr int kSums = S::kHeadSize / 2, kNumbers = shared_numbers(S::kHeadSize);
  wait(&memory.channels.sums_full, job.stage);
#pragma unroll
  for (int other = 1; other < S::kShares; ++other) {
    const float* const theirs = memory.sums + (other - 1) * kNumbers * kGroupThreads + lane.thread;
    float mine_shrinks[2], theirs_shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float their_largest = theirs[(kSums + r) * kGroupThreads];
      const float top = fmaxf(largest[r], their_largest);
      const float base = top == -INFINITY ? 0.0f : top * scale2;
      mine_shrinks[r] = exp2_fast(largest[r] * scale2 - base);
      theirs_shrink[r] = exp2_fast(their_largest * scale2 - base);
      largest[r] = top;
      sum[r] = sum[r] * mine_shrinks[r] + theirs[(kSums + 2 + r) * kGroupThreads] * theirs_shrink[r];
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      o[i] = o[i] * mine_shrinks[i / 2 % 2] + theirs[i * kGroupThreads] * theirs_shrink[i / 2 % 2];
    }
  }
  arrive(&memory.channels.sums_empty);
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    forward_sm90(const __grid_constant__ ForwardMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename S::T;
  constexpr int kHeadSize = S::kHeadSize, kKeys = S::kKeys, kStages = S::kStages;
  constexpr int kBlockKeys = S::kShares * kKeys;
  constexpr int kKeyBytes = S::KeyTile::kBytes, kKeySlab = S::KeyTile::kSlabBytes,
                kQuerySlab = S::QueryTile::kSlabBytes;
  extern __shared__ uint4 shared[];
  const ForwardMemory<S> memory(align_shared(shared));
  typename S::Channels& channels = memory.channels;
  const ForwardParameters& p = maps.p;
  const bool causal = p.sequences.causal;
  gpu::let_next_kernel_begin();
  if (threadIdx.x == 0) {
    channels.jobs.initialize_all(S::kGroups);
    channels.keys.initialize_all(kGroupWarps * S::kGroups);
    channels.values.initialize_all(kGroupWarps * S::kGroups);
    if constexpr (S::kShares > 1) {
      initialize(&channels.sums_full, (S::kShares - 1) * kGroupThreads);
      initialize(&channels.sums_empty, kGroupThreads);
    }
    fence_initialized_barriers();
  }
  __syncthreads();

  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_forward<S>(maps, memory, static_cast<int>(threadIdx.x / 32) - S::kGroups * kGroupWarps);
    return;
  }

  take_registers<S::kGroupRegisters>();
  gpu::wait_for_kernels_before();
  const Lane lane;
  const float scale2 = p.scale * kLog2e;
  const int side = lane.group % S::kHeads, share = lane.group / S::kHeads % S::kShares;
  const int row_group = lane.group / (S::kHeads * S::kShares);
  // The same for a whole warp: descriptions from a head's columns on.
  const auto of_side = [&](std::uint32_t tile) {
    return __shfl_sync(~0u, tile + described(side * kHeadSize * 2), 0);
  };
  static_assert(S::kShares == 1 || S::kHeads * kHeadSize == 64);  // a tile of one slab
  constexpr int kShareBytes = kKeys * 128;  // from a share's rows of a slab to the next one's
  const std::uint32_t k_tiles = of_side(describe_lower(memory.k + share * kShareBytes)),
                      v_tiles = of_side(describe_lower(memory.v + share * kShareBytes, kKeySlab));
  Cursor<kStages> cursor;
  for (JobCursor job;; job.advance()) {
    wait(channels.jobs.full + job.stage, job.phase);
    const Tile tile = posted_tile(channels.jobs, job);
    if (tile.rows == 0) return;
    if constexpr (S::kPacked) {
      if (tile.rows < 0) {
        attend_short_texts<S>(p, tile, scale2);
        release(channels.jobs.empty + job.stage, lane);
        continue;
      }
    }
    const int blocks = key_blocks<kBlockKeys>(tile, tile.first + tile.rows - 1, causal);
    const int head = tile.head * S::kHeads + side, first = tile.first + row_group * kBox;  // of the group
    const int rows = head < p.sequences.heads ? min(max(tile.rows - row_group * kBox, 0), kBox) : 0;
    const int mine = rows > 0 ? key_blocks<kBlockKeys>(tile, first + rows - 1, causal) : 0;
    const int common = tile.visible_keys(first, causal);
    std::byte* const q_rows =
        memory.q + (S::kPlaces == 1 ? 0 : job.stage) * S::QueryTile::kBytes + row_group * kBoxBytes;
    const std::uint32_t q_tile = of_side(describe_lower(q_rows));

    float o[kHeadSize / 2] = {};
    pin(o);
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int i = mine; i < blocks; ++i) {  // what only other groups see
      wait(channels.keys.full + cursor.stage, cursor.phase);
      release(channels.keys.empty + cursor.stage, lane);
      wait(channels.values.full + cursor.stage, cursor.phase);
      release(channels.values.empty + cursor.stage, lane);
      cursor.advance();
    }
    if (mine > 0) {
      float s[kKeys / 2];
      std::uint32_t factor[kKeys / 16][4];
      // Scores of a block to probabilities of the present maximum; what the sums so far shrink by.
      const auto exponentiate = [&](int key, float(&shrink)[2]) {
        if (key + kKeys > common) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int end = tile.visible_keys(first + lane.row(r), causal) - key - lane.column();
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) {
              if (i / 2 % 2 == r) s[i] = i / 4 * 8 + i % 2 < end ? s[i] : -INFINITY;
            }
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float top = largest[r];
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i) {
            if (i / 2 % 2 == r) top = fmaxf(top, s[i]);
          }
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
          top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
          const float base = top == -INFINITY ? 0.0f : top * scale2;
          shrink[r] = exp2_fast(largest[r] * scale2 - base);
          largest[r] = top;
          float part = 0;
#pragma unroll
          for (int i = 0; i < kKeys / 2; ++i) {
            if (i / 2 % 2 == r) part += s[i] = exp2_fast(fmaf(s[i], scale2, -base));
          }
          sum[r] = sum[r] * shrink[r] + part;
        }
      };
      const auto multiply_keys = [&](int stage) {
        wait(channels.keys.full + stage, cursor.phase);
        begin_products();
        multiply_rows<T, kHeadSize, kKeys>(s, q_tile, kQuerySlab, k_tiles + stage * described(kKeyBytes),
                                           kKeySlab);
        commit_products();
      };
      const auto multiply_values = [&](int stage, int phase) {
        wait(channels.values.full + stage, phase);
        begin_products();
        add_product<T, kHeadSize, kKeys>(o, factor, v_tiles + stage * described(kKeyBytes));
        commit_products();
      };

      int key = (mine - 1) * kBlockKeys + share * kKeys;
      float shrink[2];
      multiply_keys(cursor.stage);
      wait_for_products<0>();
      pin(s);
      release(channels.keys.empty + cursor.stage, lane);
      exponentiate(key, shrink);
      pack_factor<T, kKeys>(factor, s);
      if (key + kKeys > tile.Lk) {
        wait(channels.values.full + cursor.stage, cursor.phase);
        clear_rows<kKeys, S::kHeads * kHeadSize>(memory.v + cursor.stage * kKeyBytes + share * kShareBytes,
                                                 max(tile.Lk - key, 0), lane);
      }
      // While the scores of one block are exponentiated, the values of the block before are multiplied.
      for (int i = 1; i < mine; ++i) {
        const Cursor<kStages> before = cursor;
        cursor.advance();
        multiply_keys(cursor.stage);
        multiply_values(before.stage, before.phase);
        key -= kBlockKeys;
        wait_for_products<1>();
        pin(s);
        release(channels.keys.empty + cursor.stage, lane);
        exponentiate(key, shrink);
        wait_for_products<0>();
        pin(o);
        release(channels.values.empty + before.stage, lane);
#pragma unroll
        for (int i = 0; i < kHeadSize / 2; ++i) o[i] *= shrink[i / 2 % 2];
        pack_factor<T, kKeys>(factor, s);
      }
      multiply_values(cursor.stage, cursor.phase);
      wait_for_products<0>();
      pin(o);
      release(channels.values.empty + cursor.stage, lane);
      cursor.advance();
    }

    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
    if constexpr (S::kShares > 1) {
      if (share > 0) {
        hand_over_share<S>(o, largest, sum, memory, share, job, lane);
        release(channels.jobs.empty + job.stage, lane);
        continue;
      }
      add_shares<S>(o, largest, sum, memory, scale2, job, lane);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse[r] = sum[r] == 0 ? 0.0f : 1 / sum[r];
      if (p.lse && lane.column() == 0 && lane.row(r) < rows) {
        p.lse[static_cast<std::int64_t>(head) * p.sequences.Nq + tile.q0 + first + lane.row(r)] =
            sum[r] == 0 ? -INFINITY : fmaf(largest[r], p.scale, logf(sum[r]));
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadSize / 2; ++i) o[i] *= inverse[i / 2 % 2];
    store_rows<T, kHeadSize>(p.out, tile.q0 + first, head, rows, o, q_rows, kQuerySlab, lane,
                             side * kHeadSize / 8);
    fence_stores_to_shared();  // before the copy of the job after next
    release(channels.jobs.empty + job.stage, lane);
  }
#endif
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
