// What the kernels of flash_sm90 are made of: tiles in shared memory and their products, jobs that a copying
// warp posts to groups of four warps that multiply, and sums on their way back to memory.
//
// A copy brings whole boxes of 64 rows, so the last tile of a sequence ends in rows of its neighbour: their
// scores are masked, and where such a row would be multiplied by a probability of 0 it is overwritten with
// zeros first, so that a NaN next door stays there.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "ops/attention/cuda/flash.cuh"
#include "ops/attention/cuda/refuse.cuh"
#include "ops/cuda/hopper/products.cuh"
#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/hopper/tensor_map.hpp"

namespace warpwright::ops::attention::cuda {
namespace sm90 {  // not unnamed: a pass for an older architecture sees none of it used

using namespace hopper;

inline constexpr int kBox = 64;               // rows of a group of warps and of a copy
inline constexpr int kBoxBytes = kBox * 128;  // of 64 columns
inline constexpr int kGroupThreads = 128, kGroupWarps = 4;

// Tiles in shared memory are slabs of 64 columns, each kRows rows of 128 bytes.
template <int kRows, int kHeadSize>
struct Slabs {
  static constexpr int kSlabBytes = kRows * 128, kBytes = kHeadSize / 64 * kSlabBytes;
};

// Stages of tiles that stream by, between the copying warp and the groups. Each warp of a group frees a
// stage, or where all threads of a group read of it what no product does, each thread: sanitizers do not see
// that a warp's threads come before the one that arrives for them.
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

// A block stays on its multiprocessor and works through jobs: tiles that it takes from a counter as it comes
// to them, so that blocks end together whatever the lengths are, or where tiles are alike, every so many.
// Which block takes which tile from a counter differs between runs; no result depends on it. One warp posts
// jobs and copies what stays in shared memory for one, another warp copies what streams by: both are ahead of
// the groups.
inline constexpr int kJobs = 2;  // the present and the next
struct Jobs {
  Barrier posted[kJobs], full[kJobs], empty[kJobs];
  Tile tiles[kJobs];  // rows 0: there are no more
  __device__ void initialize_all(int groups) {
    for (int i = 0; i < kJobs; ++i) {
      initialize(posted + i, 1), initialize(full + i, 1);
      initialize(empty + i, kGroupWarps * groups + 1);  // and the thread that streams
    }
  }
};
using JobCursor = Cursor<kJobs>;

// By the posting warp. next: 0 at the launch, or null: every gridDim.x-th tile; find(index): a tile;
// copy(tile, place, full): what stays, to one of kPlaces (1 or kJobs).
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
        // One place: until the job before is done.
        if (kPlaces == 1) wait(jobs.empty + (job.stage ^ 1), job.stage ? job.phase : job.phase ^ 1);
        copy(tile, kPlaces == 1 ? 0 : job.stage, jobs.full + job.stage);
      }
    }
    if (tile.rows <= 0) return;
    index = __shfl_sync(~0u, index, 0);
  }
}

// By one thread: copy(tile), until there are no more.
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

// By each warp of a group: a job's tile. One lane reads it, the one that frees its place with release(), so
// that each thread's reads come before its own arrival.
__device__ inline Tile posted_tile(const Jobs& jobs, const JobCursor& job) {
  Tile t{};
  if (threadIdx.x % 32 == 0) t = jobs.tiles[job.stage];
  const auto of_first = [](int x) { return __shfl_sync(~0u, x, 0); };
  return {of_first(t.sequence), of_first(t.head), of_first(t.q0),    of_first(t.Lq),
          of_first(t.k0),       of_first(t.Lk),   of_first(t.first), of_first(t.rows)};
}

// Tile `index`, moved so that it is a sequence's first tile that is not full, not the last one, which sees
// the most keys.
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

template <int kRows, int kHeadSize>
__device__ void copy_tile(std::byte* to, const CUtensorMap& map, Barrier* barrier, int head, int row,
                          int column = 0) {
#pragma unroll
  for (int slab = 0; slab < kHeadSize / 64; ++slab) {
#pragma unroll
    for (int box = 0; box < kRows / kBox; ++box) {
      copy_box(to + slab * Slabs<kRows, kHeadSize>::kSlabBytes + box * kBoxBytes, &map, barrier,
               column + slab * 64, head, row + box * kBox);
    }
  }
}

// A thread of a group has rows row(0) and row(1) = row(0) + 8 of its 64, and of each, columns
// 8·(i/4) + column() + i%2 as element i of a sum, where row i/2%2.
struct Lane {
  int group, thread;  // of the group
  __device__ Lane()
      : group(static_cast<int>(threadIdx.x) / kGroupThreads),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads) {}
  __device__ int row(int r) const { return thread / 32 * 16 + thread % 32 / 4 + 8 * r; }
  __device__ int column() const { return thread % 4 * 2; }
};

// By each warp of a group: it is done with what the barrier stands for.
__device__ inline void release(Barrier* barrier, const Lane& lane) {
  __syncwarp();
  if (lane.thread % 32 == 0) arrive(barrier);
}

// Zeros in rows from `valid` on, by one group, for its products.
template <int kRows, int kHeadSize>
__device__ void clear_rows(std::byte* tile, int valid, const Lane& lane) {
  constexpr int kChunks = kHeadSize / 8;
  for (int index = lane.thread; index < (kRows - valid) * kChunks; index += kGroupThreads) {
    const int row = valid + index / kChunks, chunk = index % kChunks;
    *reinterpret_cast<uint4*>(tile + chunk / 8 * Slabs<kRows, kHeadSize>::kSlabBytes + row * 128 +
                              chunk % 8 * 16) = uint4{};
  }
  fence_stores_to_shared();
  named_barrier(1 + lane.group, kGroupThreads);
}

// Tiles are named by the lower halves of their descriptions, bytes between them counted in 16.
__device__ constexpr std::uint32_t described(int bytes) {
  return static_cast<std::uint32_t>(bytes) / 16;
}

// sum = a·bᵀ: 64 rows of a tile, kCols rows of another.
template <class T, int kHeadSize, int kCols>
__device__ void multiply_rows(float (&sum)[kCols / 2], std::uint32_t a, int a_slab, std::uint32_t b,
                              int b_slab) {
#pragma unroll
  for (int step = 0; step < kHeadSize / 16; ++step) {
    const int slab = step / 4, offset = step % 4 * 2;
    multiply_tiles<T, kCols>(sum, describe_with(a + described(slab * a_slab) + offset),
                             describe_with(b + described(slab * b_slab) + offset), step > 0);
  }
}

// sum += factor·b: kTerms rows of a tile, whose slabs its description knows.
template <class T, int kHeadSize, int kTerms>
__device__ void add_product(float (&sum)[kHeadSize / 2], const std::uint32_t (&factor)[kTerms / 16][4],
                            std::uint32_t b) {
#pragma unroll
  for (int step = 0; step < kTerms / 16; ++step) {
    multiply_registers<T, kHeadSize, true>(sum, factor[step], describe_with(b + step * 128), 1);
  }
}

// A sum as the left factor of a product.
template <class T, int kTerms>
__device__ void pack_factor(std::uint32_t (&factor)[kTerms / 16][4], const float (&s)[kTerms / 2]) {
#pragma unroll
  for (int i = 0; i < kTerms / 4; ++i) factor[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// Rows of a sum to memory, through the group's rows of a tile that no product reads any more, from a chunk of
// eight columns on.
template <class T, int kHeadSize>
__device__ void store_rows(const Rows& to, int first, int head, int valid, const float (&sum)[kHeadSize / 2],
                           std::byte* rows, int slab_bytes, const Lane& lane, int first_chunk = 0) {
  const auto at_chunk = [&](int row, int chunk) {
    chunk += first_chunk;
    return rows + chunk / 8 * slab_bytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
  };
#pragma unroll
  for (int i = 0; i < kHeadSize / 2; i += 2) {
    *reinterpret_cast<std::uint32_t*>(at_chunk(lane.row(i / 2 % 2), i / 4) + lane.column() * 2) =
        pack<T>(sum[i], sum[i + 1]);
  }
  __syncwarp();
  constexpr int kChunks = kHeadSize / 8;
#pragma unroll 4
  for (int index = lane.thread % 32; index < 16 * kChunks; index += 32) {
    const int row = lane.thread / 32 * 16 + index / kChunks, chunk = index % kChunks;
    if (row >= valid) break;
    const std::byte* from = at_chunk(row, chunk);
    T* at = reinterpret_cast<T*>(to.at(first + row, head)) + chunk * 8;
    if (to.aligned) {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int i = 0; i < 8; ++i) at[i] = reinterpret_cast<const T*>(from)[i];
    }
  }
}

__device__ inline std::byte* align_shared(uint4* shared) {
  const std::uint32_t address = shared_address(shared);
  return reinterpret_cast<std::byte*>(shared) + ((1024 - address % 1024) % 1024);
}

// Boxes of kBox rows and 64 columns of one head.
inline CUtensorMap map_of(const Tensor& t) {
  return map_boxes<3>(t.data, t.dtype, {t.shape[2], t.shape[1], t.shape[0]}, {t.strides[1], t.strides[0]},
                      {64, 1, kBox});
}

// Zeros for the jobs of a call's kernels, one each.
inline constexpr std::size_t kCounterBytes = 256;
inline unsigned* counters(const Context& context, void* scratch) {
  warpwright::cuda::check(cudaMemsetAsync(scratch, 0, kCounterBytes, context.stream().get()),
                          "clearing counters of tiles");
  return static_cast<unsigned*>(scratch);
}

// Blocks that stay.
inline unsigned resident(const Context& context, unsigned tiles, int each = 1) {
  return std::min(tiles, static_cast<unsigned>(each * context.device().gpu.multiprocessors));
}

// f<T, head size>() of a problem that flash_sm90 does not refuse.
template <class F>
void visit_shape(DType dtype, std::int64_t HS, F&& f) {
  if (dtype == DType::bf16) {
    HS == 64 ? f.template operator()<__nv_bfloat16, 64>() : f.template operator()<__nv_bfloat16, 128>();
  } else {
    HS == 64 ? f.template operator()<__half, 64>() : f.template operator()<__half, 128>();
  }
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
