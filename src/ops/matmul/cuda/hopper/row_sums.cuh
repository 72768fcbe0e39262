// Helpers: warps that sum the rows of A (SumRows) from the producer's tiles.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/hopper/parameters.cuh"
#include "ops/matmul/cuda/hopper/ring.cuh"

namespace warpwright::ops::matmul::cuda {

// Sums 64 rows of each slab for which it is this block's turn, to p.row_sums.
template <class K, int kCluster>
__device__ void sum_rows_of_slabs(const Parameters& p, const std::byte* tiles, Barrier* full, int turn,
                                  int turns, int first_row, int helper, int begin, int end, Cursor& cursor,
                                  const Release<kCluster>& release) {
  using Tile = typename K::Tile;
  using In = typename K::In;
  static_assert(K::kATransposed && sizeof(In) == 2);
  const int lane = static_cast<int>(threadIdx.x) % 32, row = first_row + helper * 64 + 2 * lane;
#pragma unroll 1
  for (int slab = begin; slab < end; ++slab) {
    wait(full + cursor.stage, cursor.phase);
    if (slab % turns == turn) {
      const std::byte* const tile = tiles + cursor.stage * Tile::kStageBytes + helper * kBoxBytes;
      float low = 0, high = 0;
#pragma unroll 8
      for (int k = 0; k < kSlab; ++k) {
        const auto pair = gpu::Packed<In, 2>::load(
            reinterpret_cast<const In*>(tile + k * kRowBytes + (lane / 4 ^ k % 8) * 16 + lane % 4 * 4));
        low += pair[0], high += pair[1];
      }
      if (row < p.work.rows) {
        float* const to = p.row_sums + static_cast<std::int64_t>(slab) * p.work.rows + row;
        *reinterpret_cast<float2*>(to) = make_float2(low, high);
      }
    }
    __syncwarp();
    release(cursor.stage);
    cursor.advance<Tile::kStages>();
  }
}

// Sums rows of all pieces of this block's worker.
template <class K>
__device__ void sum_rows(const Parameters& p, const Shared<typename K::Tile>& shared,
                         const Place<typename K::Tile>& place, typename K::Schedule& schedule, int helper,
                         const Release<K::Tile::kCluster>& release) {
  using Tile = typename K::Tile;
  static_assert(Tile::kRows <= 3 * 64);  // three warps of the producer's group are free
  const int turns = p.work.col_tiles * Tile::kClusterAcross;
  Cursor cursor;
  Piece piece;
  while (schedule.next(piece)) {
    sum_rows_of_slabs<K>(p, shared.tiles, shared.full, place.col_tile(piece), turns, place.first_row(piece),
                         helper, piece.begin, piece.end, cursor, release);
  }
}

}  // namespace warpwright::ops::matmul::cuda
