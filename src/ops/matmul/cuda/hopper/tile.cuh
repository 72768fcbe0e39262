// A block's tile: its sizes, its part of shared memory, its threads, and its place in the cluster.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/cuda/hopper/barrier.cuh"
#include "ops/matmul/cuda/schedule.cuh"
#include "ops/matmul/tiles.hpp"

namespace warpwright::ops::matmul::cuda {

using namespace hopper;

inline constexpr int kGroupThreads = 128;
inline constexpr int kBoxRows = 64;    // rows of a product instruction, and of a box that a group sends
inline constexpr int kWarpRows = 16;   // rows of a box that each warp sends
inline constexpr int kRowBytes = 128;  // bytes of a tile's row in shared memory
inline constexpr int kBoxBytes = kBoxRows * kRowBytes;
inline constexpr int kSharedLimit = 227 * 1024;

// The rows or columns of the result in a slab of a transposed factor's tile. 96 columns are three slabs of
// 32, because two slabs of 64 would copy a quarter in vain. 160 columns are three slabs of 64, because five
// slabs of 32 have twice as many rows to copy, and a row costs the same.
constexpr int slab_cols(int side) {
  return side % 64 == 0 || side > 128 ? 64 : 32;
}
// B's bytes in a stage.
constexpr int bytes_of_b(int side) {
  return (side + slab_cols(side) - 1) / slab_cols(side) * slab_cols(side) * kRowBytes;
}

// A block's tile. groups_down × groups_across groups share it; if that is one group, two groups take turns,
// each with its own tile. The blocks of a cluster have tiles below each other (and share B's), or next to
// each other (and share A's).
template <int rows, int cols, int groups_down, int groups_across, int cluster_down = 1,
          int cluster_across = 1>
struct Tile {
  static constexpr int kRows = rows, kCols = cols;
  static constexpr int kGroupsAcross = groups_across,
                       kTeam = groups_down * groups_across;  // groups on one tile
  static constexpr bool kPingpong = kTeam == 1;
  static constexpr int kGroups = kPingpong ? 2 : kTeam;
  static constexpr int kGroupRows = rows / groups_down, kGroupCols = cols / groups_across;
  static constexpr int kBlocks = kGroupRows / kBoxRows,
                       kSums = kGroupCols / 2;  // a thread has kBlocks × kSums sums
  static constexpr int kClusterDown = cluster_down, kClusterAcross = cluster_across;
  static constexpr int kCluster = cluster_down * cluster_across;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  // Registers per thread. The compiler gives the same number to all threads; the producer gives some of its
  // own to the groups.
  static constexpr bool kManySums = kBlocks * kSums > 160;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : kManySums ? 40 : 88;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : kManySums ? 232 : 208;

  static constexpr int kABytes = rows * kRowBytes, kBBytes = bytes_of_b(cols);
  static constexpr int kStageBytes = kABytes + kBBytes;
  // Buffers of a group for its results. If groups take turns, more buffers keep its warps from waiting for
  // the copy engine.
  static constexpr int kBuffers = kPingpong && rows * cols > 64 * 128 ? 4 : 2;
  static constexpr int kBufferBytes = kGroups * kBuffers * kBoxBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kBiasBytes = kGroups * kGroupCols * 2;  // for each group's tile
  static constexpr int kRestBytes = kBufferBytes + kBarrierBytes + kBiasBytes;
  // The slabs of a small tile are multiplied long before the next ones arrive from device memory. Many stages
  // keep enough copies under way.
  static constexpr int kStages = std::min((kSharedLimit - 1024 - kRestBytes) / kStageBytes, 12);
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kRestBytes;
  static_assert(kCluster <= 2 && kStages >= 2 && kGroupRows % kBoxRows == 0);
};

// A thread of a group. It has rows row() and row() + 8 of 64, and column() and the next column of every
// eight.
struct Lane {
  int thread;  // of the group
  __device__ Lane() : thread(static_cast<int>(threadIdx.x % kGroupThreads)) {}
  // Unsigned quotients are shifts and need no extra register.
  __device__ unsigned index() const { return static_cast<unsigned>(thread); }
  __device__ int row() const { return static_cast<int>(index() / 32 * 16 + index() % 32 / 4); }
  __device__ int column() const { return static_cast<int>(index() % 4 * 2); }
  __device__ bool leads() const { return thread == 0; }
};

// Numbers of this thread that the compiler knows to be the same in the whole warp.
__device__ inline int warp_of_threads() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
}
__device__ inline int group_of_threads() {
  return warp_of_threads() / (kGroupThreads / 32);
}

// A block's place in its cluster, and its own tiles in the pieces of its worker.
template <class Tile>
struct Place {
  int worker = static_cast<int>(blockIdx.x) / Tile::kCluster;
  int rank = static_cast<int>(blockIdx.x) % Tile::kCluster;
  int down = rank % Tile::kClusterDown, across = rank / Tile::kClusterDown;

  __device__ int col_tile(const Piece& piece) const { return piece.col_tile * Tile::kClusterAcross + across; }
  __device__ int first_row(const Piece& piece) const {
    return (piece.row_tile * Tile::kClusterDown + down) * Tile::kRows;
  }
  __device__ int first_col(const Piece& piece) const { return col_tile(piece) * Tile::kCols; }
};

}  // namespace warpwright::ops::matmul::cuda
