// The jobs of a block that stays on its multiprocessor, and the stages that stream by in each job.
#pragma once

#include <climits>

#include "ops/attention/cuda/sm90/tiles.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

// Stages of tiles between the copying warp and the groups. `freeing` is the number of arrivals that free a
// stage: one for each warp of a group, or in the backward one for each thread. Its threads read the stage
// themselves, and sanitizers do not see that the threads of a warp come before the one that arrives for them.
template <int kStages>
struct Ring {
  Barrier full[kStages], empty[kStages];
  __device__ void initialize_all(int freeing) {
    for (int i = 0; i < kStages; ++i) initialize(full + i, 1), initialize(empty + i, freeing);
  }
};
template <int kStages>
struct Cursor {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// A block stays on its multiprocessor and works through jobs. A job is a tile. Blocks take tiles from a
// counter, so that they end together whatever the lengths are; if all tiles are alike, each block takes every
// gridDim.x-th tile. The counter's order differs between runs, but no result depends on it. One warp posts
// jobs and copies what stays in shared memory, another warp copies what streams by. Both are ahead of the
// groups.
inline constexpr int kJobs = 2;  // the present job and the next
struct Jobs {
  Barrier posted[kJobs], full[kJobs], empty[kJobs];
  Tile tiles[kJobs];  // rows 0: no more jobs
  __device__ void initialize_all(int groups) {
    for (int i = 0; i < kJobs; ++i) {
      initialize(posted + i, 1), initialize(full + i, 1);
      initialize(empty + i, kGroupWarps * groups + 1);  // and the thread that streams
    }
  }
};
using JobCursor = Cursor<kJobs>;

// The posting warp. `next` is 0 at the launch, or null: then blocks take every gridDim.x-th tile. find(index)
// returns a tile. copy(tile, place, full) copies what stays to one of kPlaces places (1 or kJobs).
template <int kPlaces, class Find, class Copy>
__device__ void post_jobs(Jobs& jobs, unsigned* next, Find&& find, Copy&& copy) {
  const bool leader = threadIdx.x % 32 == 0;
  unsigned index = blockIdx.x;
  for (JobCursor job;; job.advance()) {
    const Tile tile = find(index);
    if (leader) {
      wait(jobs.empty + job.stage, job.phase ^ 1);
      jobs.tiles[job.stage] = tile;
      arrive(jobs.posted + job.stage);
      if (tile.rows <= 0) {
        arrive(jobs.full + job.stage);
      } else {
        index = next ? gridDim.x + atomicAdd(next, 1u) : index + gridDim.x;
        // With one place, waits until the job before has ended.
        if (kPlaces == 1) wait(jobs.empty + (job.stage ^ 1), job.stage ? job.phase : job.phase ^ 1);
        copy(tile, kPlaces == 1 ? 0 : job.stage, jobs.full + job.stage);
      }
    }
    if (tile.rows <= 0) return;
    index = __shfl_sync(~0u, index, 0);
  }
}

// One thread calls copy(tile) until there are no more jobs.
template <class Copy>
__device__ void stream_jobs(Jobs& jobs, Copy&& copy) {
  for (JobCursor job;; job.advance()) {
    wait(jobs.posted + job.stage, job.phase);
    const Tile tile = jobs.tiles[job.stage];
    if (tile.rows == 0) return;
    arrive(jobs.empty + job.stage);
    copy(tile);
  }
}

// The tile of a job, for each warp of a group. One lane reads it: the one that frees its place with
// release(), so that each thread's reads come before its own arrival.
__device__ inline Tile posted_tile(const Jobs& jobs, const JobCursor& job) {
  Tile t{};
  if (threadIdx.x % 32 == 0) t = jobs.tiles[job.stage];
  const auto of_first = [](int x) { return __shfl_sync(~0u, x, 0); };
  return {of_first(t.sequence), of_first(t.head), of_first(t.q0),    of_first(t.Lq),
          of_first(t.k0),       of_first(t.Lk),   of_first(t.first), of_first(t.rows)};
}

// Finds tile `index`. If the length of a sequence is not a multiple of kRows, its first tile is the short
// one, because the last tile sees the most keys.
template <int kRows>
__device__ Tile find_queries(const Sequences& sequences, unsigned index) {
  Tile tile = find_tile<false, kRows>(sequences, index);
  if (tile.rows > 0) {
    const int shift = (tile.Lq + kRows - 1) / kRows * kRows - (tile.Lq + kBox - 1) / kBox * kBox;
    const int end = min(tile.first + kRows - shift, tile.Lq);
    tile.first = max(tile.first - shift, 0);
    tile.rows = end - tile.first;
  }
  return tile;
}

// The window of a shape's kernel, which knows whether there is one when it is compiled.
template <class S>
__device__ int window_of(const Sequences& sequences) {
  return S::kWindow ? sequences.window : 0;
}

// The number of tiles of kRows keys of each sequence, or 0 if they differ. Each warp counts by itself.
template <int kRows>
__device__ int key_tiles_of_each(const Sequences& sequences) {
  int least = INT_MAX, most = 0;
  for (int s = static_cast<int>(threadIdx.x % 32); s < sequences.count; s += 32) {
    const int tiles = (whole_sequence(sequences, s).Lk + kRows - 1) / kRows;
    least = min(least, tiles), most = max(most, tiles);
  }
  least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
  return least == most ? most : 0;
}

// The tiles of keys in the order in which blocks take them. find_tile() has one sequence after the other. A
// few sequences with few key heads give each block only a few tiles: if such sequences have equally many, the
// first tiles of all, which most queries see, come before the second ones, and the blocks end together.
template <int kRows>
struct KeyOrder {
  static constexpr int kFew = 8;  // tiles for each block
  const Sequences& sequences;
  int heads = sequences.key_heads(), each = key_tiles_of_each<kRows>(sequences);
  bool across = static_cast<std::int64_t>(each) * sequences.count * heads <= kFew * gridDim.x && each > 0;

  __device__ Tile find(unsigned index) const {
    if (!across) return find_tile<true, kRows>(sequences, index, heads);
    const int slot = static_cast<int>(index) / heads;
    Tile tile = whole_sequence(sequences, slot % sequences.count);
    tile.head = static_cast<int>(index) % heads;
    tile.first = slot / sequences.count * kRows;
    tile.rows = min(max(tile.Lk - tile.first, 0), kRows);
    return tile;
  }
};

// Each warp of a group calls this when it no longer needs the stage or the place.
__device__ inline void release(Barrier* barrier, const Lane& lane) {
  __syncwarp();
  if (lane.thread % 32 == 0) arrive(barrier);
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
