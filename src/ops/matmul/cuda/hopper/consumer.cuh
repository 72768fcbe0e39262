// The groups of warps that multiply: products of slabs, then partial sums and the epilogue.
#pragma once

#include "ops/cuda/cp_async.cuh"
#include "ops/cuda/hopper/products.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/matmul/cuda/hopper/outlet.cuh"
#include "ops/matmul/cuda/hopper/ring.cuh"
#include "ops/matmul/cuda/partial_sums.cuh"

namespace warpwright::ops::matmul::cuda {

// Describes B's tile for the products (describe_tile). kStepOfB is the step of 16 terms in that description.
template <class K>
__device__ std::uint64_t describe_b(const void* tile) {
  if constexpr (K::kBRowBytes == kRowBytes) return describe_tile(tile, kBoxBytes);
  constexpr std::uint64_t kSwizzle64 = std::uint64_t{2} << 62, kEightRows = std::uint64_t{512 >> 4} << 32;
  return kSwizzle64 | kEightRows | describe_lower(tile, kBoxBytes / 2);
}
template <class K>
inline constexpr int kStepOfB = K::kBRowBytes == kRowBytes ? kDescribedStep<K::kBTransposed> : 64;

// Multiplies this many slabs and releases each one. Calls done_issuing() once the last products are under
// way.
template <class K, int kCluster, class Done>
__device__ void multiply_slabs(float (&sum)[K::Tile::kBlocks][K::Tile::kSums], std::uint64_t a_tile,
                               std::uint64_t b_tile, Barrier* full, int slabs, Cursor& cursor,
                               const Release<kCluster>& release, Done&& done_issuing) {
  using Tile = typename K::Tile;
  pin(sum);
  int before = 0;
#pragma unroll 1  // short code: it comes from device memory on the first call
  for (int i = 0; i < slabs; ++i) {
    wait(full + cursor.stage, cursor.phase);
    const std::uint64_t stage = static_cast<std::uint64_t>(cursor.stage * (Tile::kStageBytes / 16));
    begin_products();
#pragma unroll
    for (int step = 0; step < kSlab / 16; ++step) {
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        multiply_tiles<typename K::In, Tile::kGroupCols, K::kATransposed, K::kBTransposed>(
            sum[b], a_tile + stage + b * (kBoxBytes / 16) + step * kDescribedStep<K::kATransposed>,
            b_tile + stage + step * kStepOfB<K>, i > 0 || step > 0);
      }
    }
    commit_products();
    if (i > 0) {
      wait_for_products<1>();
      release(before);
    }
    before = cursor.stage;
    cursor.advance<Tile::kStages>();
  }
  done_issuing();
  wait_for_products<0>();
  pin(sum);
  if (slabs > 0) release(before);
}
template <class K, int kCluster>
__device__ void multiply_slabs(float (&sum)[K::Tile::kBlocks][K::Tile::kSums], std::uint64_t a_tile,
                               std::uint64_t b_tile, Barrier* full, int slabs, Cursor& cursor,
                               const Release<kCluster>& release) {
  multiply_slabs<K>(sum, a_tile, b_tile, full, slabs, cursor, release, [] {});
}

// Notes a group's times if the schedule is traced.
template <class K>
struct Trace {
  Stamps stamps;
  int tiles = 0;

  __device__ void begin_products() {
    if constexpr (K::Schedule::kTraced) stamps.products = clock64();
  }
  __device__ void begin_epilogue() {
    if constexpr (K::Schedule::kTraced) stamps.epilogue = clock64();
  }
  __device__ void end_tile(const Parameters& p, const Outlet<K>& outlet) {
    if constexpr (K::Schedule::kTraced) {
      stamps.end = clock64();
      const int index = tiles++;
      if (outlet.lane.leads() && index < kTracedTiles) {
        p.stamps[(static_cast<int>(blockIdx.x) * K::Tile::kGroups + outlet.group) * kTracedTiles + index] =
            stamps;
      }
    }
  }
};

// The workers that share a tile equally. `self` is this worker among them, and `chunks` has a bit for each
// chunk that it finishes.
struct Share {
  int workers = 1, self = 0;
  unsigned chunks = 0;
  __device__ bool has(int chunk) const { return chunks >> chunk & 1; }
};

// A group of four warps. It multiplies each piece of its worker and runs the epilogue.
template <class K>
class Consumer {
  using Tile = typename K::Tile;
  using In = typename K::In;
  using Schedule = typename K::Schedule;
  using Sums = float[Tile::kBlocks][Tile::kSums];
  static constexpr int kChunks = K::kChunks * Tile::kBlocks;  // in the group's part of a tile
  static constexpr int kTurn = 1 + Tile::kGroups;             // barrier kTurn + g: group g may multiply

 public:
  __device__ Consumer(const Parameters& p, const Shared<Tile>& shared, const Place<Tile>& place, int group,
                      const Release<Tile::kCluster>& release)
      : p_(p),
        shared_(shared),
        place_(place),
        release_(release),
        group_(group),
        member_(Tile::kPingpong ? 0 : group),
        group_row_(member_ / Tile::kGroupsAcross * Tile::kGroupRows),
        group_col_(member_ % Tile::kGroupsAcross * Tile::kGroupCols),
        outlet_(shared, group, warp_of_threads() % 4),
        a_tile_(describe_tile(shared.tiles + group_row_ * kRowBytes, kBoxBytes)),
        b_tile_(describe_b<K>(shared.tiles + Tile::kABytes + group_col_ * kRowBytes)) {}

  __device__ void consume(Schedule& schedule) {
    Piece piece, following;
    bool more = schedule.next(piece);
    if constexpr (Tile::kPingpong) {
      if (group_ == 1 && more) {
        give_turn(0);  // the other group begins
        skip(piece);
        more = schedule.next(piece);
      }
    }
    while (more) {
      row_ = place_.first_row(piece) + group_row_, col_ = place_.first_col(piece) + group_col_;
      if (piece.ends_tile) fetch_first_chunks();
      bool other_more = false;
      if constexpr (Tile::kPingpong) {
        wait_for_turn();
        other_more = schedule.next(following);
      }
      fetch_bias();
      Sums sum = {};
      trace_.begin_products();
      multiply_slabs<K>(sum, a_tile_, b_tile_, shared_.full, piece.end - piece.begin, cursor_, release_, [&] {
        if (other_more) give_turn(1 - group_);
      });
      trace_.begin_epilogue();
      wait_for_bias();
      Share share;
      if constexpr (Schedule::kCutsDepth) share = exchange(sum, piece, schedule);
      if (!Schedule::kCutsDepth || piece.ends_tile || share.workers > 1) finish_chunks(sum, share);
      trace_.end_tile(p_, outlet_);
      if constexpr (Tile::kPingpong) {
        if (!other_more) break;
        skip(following);
      }
      more = schedule.next(piece);
    }
  }

 private:
  __device__ void wait_for_turn() { named_barrier(kTurn + group_, 2 * kGroupThreads); }
  __device__ void give_turn(int group) { arrive_at_named_barrier(kTurn + group, 2 * kGroupThreads); }
  __device__ void skip(const Piece& piece) {
    cursor_.template advance<Tile::kStages>(piece.end - piece.begin);
  }

  // Requests the first chunks of the matrix that the epilogue reads.
  __device__ void fetch_first_chunks() {
    if constexpr (K::Epilogue::kReadsMatrix) {
#pragma unroll
      for (int i = 0; i < min(K::kSlots, kChunks); ++i) {
        outlet_.template fetch<0>(p_, i, row_ + i / K::kChunks * kBoxRows,
                                  col_ + i % K::kChunks * K::kChunkCols);
      }
    }
  }
  // Requests the chunk that takes a free slot: the slot of the chunk before this one, or of the one before
  // that.
  __device__ void fetch_next_chunk(int index) {
    if constexpr (K::Epilogue::kReadsMatrix) {
      static_assert(!Schedule::kCutsDepth);
      constexpr int kBehind = K::kSlots > 2 ? 2 : 1;
      const int next = index - kBehind + K::kSlots;
      if (index >= kBehind && next < kChunks) {
        outlet_.template fetch<kBehind - 1>(p_, K::kSlots - kBehind, row_ + next / K::kChunks * kBoxRows,
                                            col_ + next % K::kChunks * K::kChunkCols);
      }
    }
  }

  // Requests the bias of the tile while the tile is being summed. All warps have met since they read the last
  // bias.
  __device__ void fetch_bias() {
    if constexpr (K::Epilogue::kAddsBias) {
      if constexpr (!Tile::kPingpong) named_barrier(1 + group_, kGroupThreads);
      const int at = 2 * outlet_.lane.thread;
      if (p_.bias && at < Tile::kGroupCols) {
        gpu::cp_async<4>(const_cast<std::byte*>(outlet_.bias) + 2 * at,
                         static_cast<const In*>(p_.bias) + col_ + at, col_ + at < p_.work.cols ? 4 : 0);
      }
      gpu::cp_async_commit_group();
    }
  }
  // Waits once per tile. A wait before each chunk would also wait for the stores under way, because the
  // hardware counts both together.
  __device__ void wait_for_bias() {
    if constexpr (K::Epilogue::kAddsBias) {
      gpu::cp_async_wait_group<0>();
      named_barrier(1 + group_, kGroupThreads);
    }
  }

  using PartOf = Part<Tile::kBlocks, Tile::kSums>;
  __device__ PartOf part(int worker) const {
    const std::int64_t index = (worker * Tile::kCluster + place_.rank) * std::int64_t{Tile::kTeam} + member_;
    return {p_.partials + index * (Tile::kGroupRows * Tile::kGroupCols), p_.flags + index, 1 + group_,
            outlet_.lane.thread};
  }

  // If the depth of a tile is cut: hands the sums to the worker that finishes the tile, or adds the sums of
  // the others.
  __device__ Share exchange(Sums& sum, const Piece& piece, const Schedule& schedule) {
    Share share{schedule.sharers_of_each_tile()};
    share.self = place_.worker % share.workers;
    if (share.workers > 1) {
      hand_out_chunks(sum, share);
    } else if (!piece.ends_tile) {
      part(place_.worker).write(sum, 0, PartOf::kQuads);
      part(place_.worker).raise_flag();
    } else if (piece.begin > 0) {
      add_parts(sum, piece, schedule);
    }
    return share;
  }

  // Each worker that shares a tile finishes some of its chunks.
  __device__ void hand_out_chunks(Sums& sum, Share& share) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * share.workers / kChunks == share.self) share.chunks |= 1u << chunk;
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!share.has(chunk)) part(place_.worker).write(sum, chunk * K::kChunkSums / 4, K::kChunkSums / 4);
    }
    part(place_.worker - share.self).meet(share.workers);
  }
  __device__ void add_others(Sums& sum, const Share& share, int chunk) {
#pragma unroll 1
    for (int w = 0; w < share.workers; ++w) {
      if (w == share.self) continue;
      part(place_.worker - share.self + w).template add_to<K::kChunkSums>(sum, chunk * K::kChunkSums / 4);
    }
  }

  // Adds the sums of the workers that have the rest of the tile's depth.
  __device__ void add_parts(Sums& sum, const Piece& piece, const Schedule& schedule) {
    const int first = schedule.first_worker_of(piece);
    take_flags(part(first).flag, Tile::kCluster * Tile::kTeam, place_.worker - first, 1 + group_,
               outlet_.lane.thread);
    constexpr int kAtOnce = std::max(32 / PartOf::kQuads, 1);  // parts that fit in registers
#pragma unroll kAtOnce
    for (int w = place_.worker - 1; w >= first; --w) {
      part(w).template add_to<Tile::kBlocks * Tile::kSums>(sum, 0);
    }
  }

  // Runs the epilogue of this worker's chunks.
  __device__ void finish_chunks(Sums& sum, const Share& share) {
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < K::kChunks; ++c) {
        const int index = b * K::kChunks + c;
        fetch_next_chunk(index);
        Chunk<K> chunk{p_,
                       outlet_,
                       row_ + b * kBoxRows,
                       col_ + c * K::kChunkCols,
                       c * K::kChunkCols + outlet_.lane.column(),
                       {}};
        if constexpr (Schedule::kCutsDepth) {
          if (share.workers > 1) {
            if (!share.has(index)) continue;
            add_others(sum, share, index);
          }
        }
#pragma unroll
        for (int i = 0; i < K::kChunkSums; ++i) chunk.v[i] = sum[b][c * K::kChunkSums + i];
        K::Epilogue::apply(chunk);
      }
    }
  }

  const Parameters& p_;
  const Shared<Tile>& shared_;
  const Place<Tile>& place_;
  const Release<Tile::kCluster>& release_;
  int group_, member_;         // this group in its block, and in the team on a tile
  int group_row_, group_col_;  // where its part of the tile begins
  Outlet<K> outlet_;
  std::uint64_t a_tile_, b_tile_;
  Cursor cursor_;
  [[maybe_unused]] Trace<K> trace_;
  int row_ = 0, col_ = 0;  // in the result, of the group's part of the present tile
};

}  // namespace warpwright::ops::matmul::cuda
