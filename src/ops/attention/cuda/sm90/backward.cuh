// The common parts of the backward's two halves: queries (backward_query.cuh) and keys (backward_key.cuh). A
// half's rows stay in shared memory ("left" tiles), and blocks of 64 rows of the other side stream by
// ("right" tiles).
#pragma once

#include "ops/attention/cuda/rotation.hpp"
#include "ops/attention/cuda/sm90/jobs.cuh"
#include "ops/rope/cuda/pairs.cuh"

namespace warpwright::ops::attention::cuda {
namespace sm90 {

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
  BackwardParameters p;
  RotationBack rotation;
  unsigned *next_query_tile, *next_key_tile;
};

// The start of a sequence's statistics in the row of its head. It is 16-byte aligned, for copies of kBox
// statistics.
__host__ __device__ inline std::int64_t statistics_stride(const Sequences& s) {
  return (static_cast<std::int64_t>(s.Nq) + s.count + kBox + 2) / 2 * 2;
}
__device__ inline RowStatistics* statistics_of(const BackwardParameters& p, const Tile& tile, int head) {
  return p.statistics + head * statistics_stride(p.sequences) + (tile.q0 + tile.sequence + 1) / 2 * 2;
}

template <class TypeT, int kHeadSizeT, int kGroupsT, bool kHasWindow>
struct BackwardShape {
  using T = TypeT;
  static constexpr bool kWindow = kHasWindow;
  static constexpr int kHeadSize = kHeadSizeT, kGroups = kGroupsT, kStages = 4,
                       kPlaces = kHeadSize == 64 ? kJobs : 1;
  static constexpr int kRows = kGroups * kBox, kThreads = (kGroups + 1) * kGroupThreads;
  // The copying warps' group gives registers to the others. A thread begins with 128 or 168.
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : kHeadSize == 64 ? 40 : 24;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : kHeadSize == 64 ? 232 : 240;
  using LeftTile = Slabs<kRows, kHeadSize>;
  using RightTile = Slabs<kBox, kHeadSize>;
  static constexpr int kPlaceBytes = 2 * LeftTile::kBytes, kStageBytes = 2 * RightTile::kBytes;
  static constexpr int kStatisticsBytes = kBox * static_cast<int>(sizeof(RowStatistics));
  struct Channels {
    Jobs jobs;
    Ring<kStages> ring;
  };
  static constexpr std::size_t kShared =
      1024 + kPlaces * kPlaceBytes + kStages * (kStageBytes + kStatisticsBytes) + sizeof(Channels);
};

// A block's shared memory. A place has q and dout, or k and v; a stage has k and v, or q and dout.
template <class S>
struct BackwardMemory {
  std::byte *places, *stages;
  RowStatistics* statistics;  // kBox per stage
  typename S::Channels& channels;
  __device__ explicit BackwardMemory(std::byte* shared)
      : places(shared),
        stages(places + S::kPlaces * S::kPlaceBytes),
        statistics(reinterpret_cast<RowStatistics*>(stages + S::kStages * S::kStageBytes)),
        channels(*reinterpret_cast<typename S::Channels*>(statistics + S::kStages * kBox)) {}
  // All threads call this before the first use. `freeing` is the number of arrivals with which a group frees
  // a stage.
  __device__ void initialize(int freeing) const {
    if (threadIdx.x == 0) {
      channels.jobs.initialize_all(S::kGroups);
      channels.ring.initialize_all(freeing * S::kGroups);
      fence_initialized_barriers();
    }
    __syncthreads();
  }
};

// The two copying warps. One copies the left tiles of each job, the other the blocks that stream by: those of
// each head of the right tiles in turn, from the last to the first. The half knows the tensors.
template <class Half>
__device__ void copy_backward(const BackwardMaps& maps, const BackwardMemory<typename Half::S>& memory) {
  using S = typename Half::S;
  const Sequences& sequences = maps.p.sequences;
  const int warp = static_cast<int>(threadIdx.x / 32) - S::kGroups * kGroupWarps;
  if (warp == 0) {
    const typename Half::Order order{sequences};
    post_jobs<S::kPlaces>(
        memory.channels.jobs, Half::counter(maps), [&](unsigned index) { return order.find(index); },
        [&](const Tile& tile, int place, Barrier* full) {
          std::byte* const to = memory.places + place * S::kPlaceBytes;
          arrive_expecting(full, S::kPlaceBytes);
          Half::copy_left(maps, tile, to, full);
        });
  } else if (warp == 1 && threadIdx.x % 32 == 0) {
    Cursor<S::kStages> cursor;
    stream_jobs(memory.channels.jobs, [&](const Tile& tile) {
      const int window = window_of<S>(sequences);
      const int begin = Half::first_block(tile, sequences.causal, window),
                end = Half::end_block(tile, sequences.causal, window);
      const int first = Half::first_right_head(sequences, tile);
#pragma unroll 1
      for (int head = first; head < first + Half::right_heads(sequences); ++head) {
#pragma unroll 1
        for (int block = end - 1; block >= begin; --block) {
          wait(memory.channels.ring.empty + cursor.stage, cursor.phase ^ 1);
          Half::copy_block(maps, memory, tile, head, block, cursor.stage);
          cursor.advance();
        }
      }
    });
  }
}

// A group's 64 rows of a left tile, for products with rows of right tiles. They are in shared memory or in
// registers; registers halve what the products read of shared memory.
template <class S, bool kInRegisters>
struct LeftRows {
  using T = typename S::T;
  static constexpr int kHeadSize = S::kHeadSize, kSlabBytes = S::LeftTile::kSlabBytes;
  std::uint32_t rows, fragments[kInRegisters ? kHeadSize / 16 : 1][4];

  __device__ LeftRows(const std::byte* tile, const Lane& lane)
      : rows(__shfl_sync(~0u, describe_lower(tile), 0)) {  // the same in a whole warp
    if constexpr (kInRegisters) {
      const int row = lane.thread / 32 * 16 + lane.thread % 16;
#pragma unroll
      for (int step = 0; step < kHeadSize / 16; ++step) {
        const int chunk = step * 2 + lane.thread % 32 / 16;
        load_matrices(fragments[step],
                      shared_address(tile + chunk / 8 * kSlabBytes + row * 128 + (chunk % 8 ^ row % 8) * 16));
      }
    }
  }
  // sum = rows · (right tile)ᵀ
  __device__ void multiply(float (&sum)[32], std::uint32_t right) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int step = 0; step < kHeadSize / 16; ++step) {
        const std::uint32_t at = right + step / 4 * described(kBoxBytes) + step % 4 * 2;
        multiply_registers<T, 64, false>(sum, fragments[step], describe_with(at), step > 0);
      }
    } else {
      multiply_rows<T, kHeadSize, 64>(sum, rows, kSlabBytes, right, kBoxBytes);
    }
  }
};

// A group's state from job to job, and its position in the ring.
template <class SizesT>
struct BackwardGroup {
  using S = SizesT;
  const BackwardParameters& p;
  const RotationBack& rotation;
  const BackwardMemory<S>& memory;
  Lane lane;
  bool causal = p.sequences.causal;
  float scale2 = p.scale * kLog2e;
  // Describes the first stage, by rows and by columns.
  std::uint32_t stages = describe_lower(memory.stages), columns = describe_lower(memory.stages, kBoxBytes);
  Cursor<S::kStages> cursor = {};

  __device__ int window() const { return window_of<S>(p.sequences); }
  __device__ void wait_for_stage() const { wait(memory.channels.ring.full + cursor.stage, cursor.phase); }
  __device__ std::byte* stage() const { return memory.stages + cursor.stage * S::kStageBytes; }
  __device__ std::uint32_t rows_of_stage() const { return stages + cursor.stage * described(S::kStageBytes); }
  __device__ std::uint32_t columns_of(int stage) const { return columns + stage * described(S::kStageBytes); }
};

// Stores the rows of dq or dk as store_rows() does, rotated back by the angles of their positions.
template <class T, int kHeadSize>
__device__ void store_rotated_back(const RotationBack& rotation, const Rows& to, int first, int head,
                                   int valid, const float (&sum)[kHeadSize / 2], const Passage& passage,
                                   const Lane& lane) {
  using Pack = gpu::Packed<T, 8>;
  passage.put<T, kHeadSize>(sum, lane);
  constexpr int kChunks = kHeadSize / 16;  // of half a head
#pragma unroll 2
  for (int index = lane.thread % 32; index < 16 * kChunks; index += 32) {
    const int row = lane.thread / 32 * 16 + index / kChunks, chunk = index % kChunks;
    if (row >= valid) break;
    const std::int64_t position = rotation.positions[first + row];
    if (position < 0 || position >= rotation.P) {
      atomicMin(rotation.wrong, static_cast<unsigned long long>(first + row));
      continue;
    }
    const std::int64_t angle = position * (kHeadSize / 2) + chunk * 8;
    float cos[8], sin[8];
    gpu::load_floats(rotation.cos + angle, cos);
    gpu::load_floats(rotation.sin + angle, sin);
#pragma unroll
    for (float& s : sin) s = -s;
    Pack a = Pack::load(reinterpret_cast<const T*>(passage.at(row, chunk)));
    Pack b = Pack::load(reinterpret_cast<const T*>(passage.at(row, chunk + kChunks)));
    rope::rotate_packs<RopeLayout::half>(a, b, cos, sin);
    T* const at = reinterpret_cast<T*>(to.at(first + row, head));
    a.store(at + chunk * 8);
    b.store(at + (chunk + kChunks) * 8);
  }
}
template <class T, int kHeadSize, class S>
__device__ void store_gradient(const BackwardGroup<S>& group, const Rows& to, int first, int head, int valid,
                               const float (&sum)[kHeadSize / 2], const Passage& passage) {
  if (group.rotation.positions) {
    store_rotated_back<T, kHeadSize>(group.rotation, to, first, head, valid, sum, passage, group.lane);
  } else {
    store_rows<T, kHeadSize>(to, first, head, valid, sum, passage, group.lane);
  }
}

// s and dp: two left tiles' rows times a block's two right tiles.
template <class S, class First, class Second>
__device__ void multiply_block(const BackwardGroup<S>& group, float (&s)[32], const First& first,
                               float (&dp)[32], const Second& second) {
  const std::uint32_t right = group.rows_of_stage();
  group.wait_for_stage();
  begin_products();
  first.multiply(s, right);
  commit_products();
  second.multiply(dp, right + described(S::RightTile::kBytes));
  commit_products();
}

// Sums a group's blocks. The scores of one block become gradients while those of the block before are
// multiplied.
template <class Blocks>
__device__ void sum_blocks(Blocks& blocks) {
  blocks.multiply();
  wait_for_products<0>();
  blocks.pin_scores(), blocks.pin_gradients();
  blocks.exponentiate();
  blocks.differentiate();
  blocks.pack();
  while (!blocks.is_last()) {
    const int before = blocks.advance();
    blocks.multiply();
    blocks.add(before);
    wait_for_products<2>();
    blocks.pin_scores();
    blocks.exponentiate();
    wait_for_products<1>();
    blocks.pin_gradients();
    blocks.differentiate();
    wait_for_products<0>();
    blocks.pin_sums();
    blocks.free(before);
    blocks.pack();
  }
  begin_products();
  blocks.add(blocks.group.cursor.stage);
  wait_for_products<0>();
  blocks.pin_sums();
  blocks.free(blocks.group.cursor.stage);
  blocks.group.cursor.advance();
}

// The work of a thread block: the copying warps, and the groups, each with its rows of every job.
template <class Half>
__device__ void run_backward(const BackwardMaps& maps) {
  using S = typename Half::S;
  extern __shared__ uint4 shared[];
  const BackwardMemory<S> memory(align_shared(shared));
  Jobs& jobs = memory.channels.jobs;
  memory.initialize(Half::kFreeing);
  if (threadIdx.x >= S::kGroups * kGroupThreads) {
    give_registers<S::kCopyRegisters>();
    copy_backward<Half>(maps, memory);
    return;
  }
  take_registers<S::kGroupRegisters>();
  BackwardGroup<S> group{maps.p, maps.rotation, memory, Lane()};
  for (JobCursor job;; job.advance()) {
    wait(jobs.full + job.stage, job.phase);
    const Tile tile = posted_tile(jobs, job);
    if (tile.rows <= 0) return;
    std::byte* const left = memory.places + (S::kPlaces == 1 ? 0 : job.stage) * S::kPlaceBytes;
    Half::do_job(group, tile, left + group.lane.group * kBoxBytes);
    fence_stores_to_shared();  // before the copy of a later job
    release(jobs.empty + job.stage, group.lane);
  }
}

}  // namespace sm90
}  // namespace warpwright::ops::attention::cuda
