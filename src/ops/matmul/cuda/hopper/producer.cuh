// The producer: one warp that copies slabs of both factors to shared memory.
#pragma once

#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/matmul/cuda/hopper/parameters.cuh"
#include "ops/matmul/cuda/hopper/ring.cuh"

namespace warpwright::ops::matmul::cuda {

// Copies one of kParts blocks' shares of a factor's tile, to this block and to those that share the tile:
// kSide rows of the result's index from `side` on, and one slab of the depth.
template <int kSide, bool kTransposed, int kParts>
__device__ void copy_factor(std::byte* to, const CUtensorMap* map, Barrier* barrier, int side, int depth,
                            int part, int blocks) {
  const auto copy = [&](std::byte* place, int column, int row) {
    if constexpr (kParts == 1) {
      copy_box(place, map, barrier, column, row);
    } else {
      copy_box_to_blocks(place, map, barrier, column, row, blocks);
    }
  };
  if constexpr (kTransposed) {
    constexpr int kDepths = kSlab / kParts, kCols = slab_cols(kSide);
#pragma unroll
    for (int slab = 0; slab < (kSide + kCols - 1) / kCols; ++slab) {
      copy(to + (slab * kSlab + part * kDepths) * (2 * kCols), side + slab * kCols, depth + part * kDepths);
    }
  } else {
    constexpr int kSides = kSide / kParts;
    copy(to + part * kSides * kRowBytes, depth, side + part * kSides);
  }
}

// Copies the slabs of a piece: copy_a(slab, stage) for each, and copy_b for all except the first `ahead`
// slabs.
template <class K, class CopyA, class CopyB>
__device__ void copy_slabs(Barrier* full, Barrier* empty, int slabs, int ahead, Cursor& cursor,
                           CopyA&& copy_a, CopyB&& copy_b) {
#pragma unroll 1
  for (int slab = 0; slab < slabs; ++slab) {
    const int stage = cursor.stage;
    if (slab >= ahead) wait(empty + stage, cursor.phase ^ 1);
    if (elected()) {
      if (slab >= ahead) {
        arrive_expecting(full + stage, K::kStageBytes);
        copy_b(slab, stage);
      }
      copy_a(slab, stage);
    }
    cursor.advance<K::Tile::kStages>();
  }
}

// Copies the first slabs of B, which are weights, before the previous kernels have ended. Returns the number
// of slabs.
template <class K, class CopyB>
__device__ int copy_weights_ahead(Barrier* full, int slabs, CopyB&& copy_b) {
  const int ahead = min(slabs, K::Tile::kStages);
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage) {
    if (!elected()) continue;
    arrive_expecting(full + stage, K::kStageBytes);
    copy_b(stage, stage);
  }
  return ahead;
}

// Copies the slabs of all pieces of this block's worker.
template <class K>
__device__ void produce(const Parameters& p, const Shared<typename K::Tile>& shared,
                        const Place<typename K::Tile>& place, typename K::Schedule& schedule) {
  using Tile = typename K::Tile;
  // A's tile is shared with the block to the right or left, B's with the block above or below.
  constexpr int kCluster = Tile::kCluster, kColumnMask = (1 << Tile::kClusterDown) - 1;
  const int a_blocks = kCluster == 1 ? 1 : Tile::kClusterAcross == 2 ? 3 : 1 << place.rank;
  const int b_blocks = kCluster == 1 ? 1 : Tile::kClusterDown == 2 ? kColumnMask : 1 << place.rank;
  const Shared<Tile> mine(kept_in_register(shared.tiles));
  Cursor cursor;
  Piece piece;
  int ahead = -1;
  while (schedule.next(piece)) {
    const int row = place.first_row(piece), col = place.first_col(piece), slabs = piece.end - piece.begin;
    const auto copy_a = [&](int slab, int stage) {
      copy_factor<Tile::kRows, K::kATransposed, Tile::kClusterAcross>(
          mine.tiles + stage * Tile::kStageBytes, &p.a, mine.full + stage, row, (piece.begin + slab) * kSlab,
          place.across, a_blocks);
    };
    const auto copy_b = [&](int slab, int stage) {
      copy_factor<Tile::kCols, K::kBTransposed, Tile::kClusterDown>(
          mine.tiles + stage * Tile::kStageBytes + Tile::kABytes, &p.b, mine.full + stage, col,
          (piece.begin + slab) * kSlab, place.down, b_blocks);
    };
    ahead = ahead < 0 && p.overlaps ? copy_weights_ahead<K>(mine.full, slabs, copy_b) : 0;
    gpu::wait_for_kernels_before();
    copy_slabs<K>(mine.full, mine.empty, slabs, ahead, cursor, copy_a, copy_b);
  }
}

}  // namespace warpwright::ops::matmul::cuda
