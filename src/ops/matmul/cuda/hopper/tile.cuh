// A tile of a product: its part of shared memory, and the threads that make it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/cuda/hopper/barrier.cuh"
#include "ops/matmul/cuda/hopper/schedule.cuh"

namespace warpwright::ops::matmul::cuda {

using namespace hopper;

inline constexpr int kGroupThreads = 128;
inline constexpr int kSlab = 64;       // terms of the depth in a stage of the ring
inline constexpr int kBoxRows = 64;    // of a product, and of what a group's four warps send
inline constexpr int kWarpRows = 16;   // of it that each of them sends for itself
inline constexpr int kRowBytes = 128;  // of a tile's row in shared memory
inline constexpr int kBoxBytes = kBoxRows * kRowBytes;
inline constexpr int kSharedLimit = 227 * 1024;

// How many of the result's rows or columns a slab of a transposed factor's tile has. 96 columns are three
// slabs of 32: of two slabs of 64 a quarter would be copied for nothing. 160 are three of 64: five of 32
// would be twice as many rows to copy, which cost as much.
constexpr int slab_cols(int side) {
  return side % 64 == 0 || side > 128 ? 64 : 32;
}
// B's share of a stage.
constexpr int bytes_of_b(int side) {
  return (side + slab_cols(side) - 1) / slab_cols(side) * slab_cols(side) * kRowBytes;
}

// A block's tile; groups_down × groups_across groups share it, or, where there is one, two take turns. Blocks
// of a cluster have tiles below each other (and share B's) or beside each other (and share A's).
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
                       kSums = kGroupCols / 2;  // a thread's sums: kBlocks × kSums
  static constexpr int kClusterDown = cluster_down, kClusterAcross = cluster_across;
  static constexpr int kCluster = cluster_down * cluster_across;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  // Registers of a thread: what the compiler gives all of them, shared out anew between producer and groups.
  static constexpr bool kManySums = kBlocks * kSums > 160;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : kManySums ? 40 : 88;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : kManySums ? 232 : 208;

  static constexpr int kABytes = rows * kRowBytes, kBBytes = bytes_of_b(cols);
  static constexpr int kStageBytes = kABytes + kBBytes;
  // Of a group, for what it sends. Where groups take turns, more of them keep its warps from waiting for the
  // copy engine.
  static constexpr int kBuffers = kPingpong && rows * cols > 64 * 128 ? 4 : 2;
  static constexpr int kBufferBytes = kGroups * kBuffers * kBoxBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kBiasBytes = kGroups * kGroupCols * 2;  // of each group's tile
  static constexpr int kRestBytes = kBufferBytes + kBarrierBytes + kBiasBytes;
  // A small tile's slabs are over long before the next ones come from device memory: it has many under way.
  static constexpr int kStages = std::min((kSharedLimit - 1024 - kRestBytes) / kStageBytes, 12);
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kRestBytes;
  static_assert(kCluster <= 2 && kStages >= 2 && kGroupRows % kBoxRows == 0);
};

// A thread of a group: its rows are row() and row() + 8 of 64, its columns column() and the next, of every
// eight.
struct Lane {
  int thread;  // of the group
  __device__ Lane() : thread(static_cast<int>(threadIdx.x % kGroupThreads)) {}
  // Without a sign quotients are shifts, and take no register more.
  __device__ unsigned index() const { return static_cast<unsigned>(thread); }
  __device__ int row() const { return static_cast<int>(index() / 32 * 16 + index() % 32 / 4); }
  __device__ int column() const { return static_cast<int>(index() % 4 * 2); }
  __device__ bool leads() const { return thread == 0; }
};

// Of this thread, as numbers that the compiler knows to be the same in the whole warp.
__device__ inline int warp_of_threads() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
}
__device__ inline int group_of_threads() {
  return warp_of_threads() / (kGroupThreads / 32);
}

// A block in its cluster: the tiles of its worker's pieces that are its own.
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
