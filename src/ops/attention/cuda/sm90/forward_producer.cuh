// The shared memory of the forward, and the two warps that copy to it.
#pragma once

#include "ops/attention/cuda/sm90/forward_pairs.cuh"
#include "ops/attention/cuda/warp_queries.cuh"
#include "ops/cuda/overlap.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

struct ForwardMaps {
  CUtensorMap q, k, v;
  ForwardParameters p;
  unsigned* next_tile;
  CUtensorMap bias = {};
  MaskWords mask = {};
};

// The numbers that a thread hands to the first group of a share: its sums, and the maximum and the sum of
// probabilities of its two rows.
constexpr int shared_numbers(int head_size) {
  return head_size / 2 + 4;
}
constexpr std::size_t shared_sums_bytes(int shares, int head_size) {
  return sizeof(float) * kGroupThreads * (shares - 1) * shared_numbers(head_size);
}

// A block's shared memory.
template <class S>
struct ForwardMemory {
  std::byte *q, *k, *v;  // q in places, k and v in stages
  std::byte* bias;       // in stages
  float* sums;           // sums of groups that share queries
  typename S::Channels& channels;
  __device__ explicit ForwardMemory(std::byte* shared)
      : q(shared),
        k(q + S::kPlaces * S::QueryTile::kBytes),
        v(k + S::kStages * S::KeyTile::kBytes),
        sums(reinterpret_cast<float*>(v + S::kStages * S::KeyTile::kBytes)),
        channels(*reinterpret_cast<typename S::Channels*>(v + S::kStages * S::KeyTile::kBytes +
                                                          shared_sums_bytes(S::kShares, S::kHeadSize))) {
    if constexpr (S::kPairs) bias = shared + S::kBiasBegin;
  }
  // All threads call this before the first use.
  __device__ void initialize() const {
    if (threadIdx.x == 0) {
      channels.jobs.initialize_all(S::kGroups);
      channels.keys.initialize_all(kGroupWarps * S::kGroups);
      channels.values.initialize_all(kGroupWarps * S::kGroups);
      if constexpr (S::kPairs) channels.bias.initialize_all(kGroupWarps * S::kGroups);
      if constexpr (S::kShares > 1) {
        hopper::initialize(&channels.sums_full, (S::kShares - 1) * kGroupThreads);
        hopper::initialize(&channels.sums_empty, kGroupThreads);
      }
      fence_initialized_barriers();
    }
    __syncthreads();
  }
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

// Copies the rows of all heads of a tile. `head_tile` counts tiles of kHeads heads.
template <class S, int kRows>
__device__ void copy_heads(std::byte* to, const CUtensorMap& map, Barrier* barrier, int head_tile, int row) {
  copy_tile<kRows, S::kHeads * S::kHeadSize>(to, map, barrier, S::kHeads == 1 ? head_tile : 0, row,
                                             S::kHeads == 1 ? 0 : head_tile * S::kHeads * S::kHeadSize);
}

// A warp brings the tensors of a run of short texts to the second-level cache.
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

// Replaces post_jobs() in the posting warp. All short texts of a run are one job. Its tile has negative rows,
// the beginning of the run as `first`, and is otherwise that of the first short text.
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

// The two copying warps.
template <class S>
__device__ void copy_forward(const ForwardMaps& maps, const ForwardMemory<S>& memory, int warp) {
  constexpr int kKeys = S::kShares * S::kKeys;
  const Sequences& sequences = maps.p.sequences;
  typename S::Channels& channels = memory.channels;
  if (warp == 0) {
    if constexpr (S::kPacked) {
      post_runs(maps, memory);
    } else {
      if (maps.next_tile) gpu::wait_for_kernels_before();  // earlier work on the stream clears it
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
    stream_jobs(channels.jobs, [&](const Tile& tile) {  // from the last visible keys to the first
      if (tile.rows < 0) return;
      const int begin = tile.first_key(tile.first, window_of<S>(sequences)) / kKeys;
      const int blocks = key_blocks<kKeys>(tile, tile.first + tile.rows - 1, sequences.causal);
      const int key_head = sequences.key_head(tile.head);  // a shape of several heads has no groups
#pragma unroll 1
      for (int block = blocks - 1; block >= begin; --block) {
        copy(memory.k, channels.keys, maps.k, key_head, tile.k0 + block * kKeys);
        if constexpr (S::kPairs) {
          if (maps.p.bias.data) {
            wait(channels.bias.empty + cursor.stage, cursor.phase ^ 1);
            BiasTiles<S>(maps.p, memory.bias, cursor.stage)
                .copy(maps.bias, channels.bias.full + cursor.stage, tile, block * kKeys);
          }
        }
        copy(memory.v, channels.values, maps.v, key_head, tile.k0 + block * kKeys);
        cursor.advance();
      }
    });
  }
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
