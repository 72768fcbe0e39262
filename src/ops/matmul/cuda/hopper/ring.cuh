// The ring of slabs between the producer and the groups that multiply.
#pragma once

#include "ops/matmul/cuda/hopper/tile.cuh"

namespace warpwright::ops::matmul::cuda {

// A position in the ring.
struct Cursor {
  int stage = 0, phase = 0;
  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
  template <int kStages>
  __device__ void advance(int steps) {
    stage += steps;
    phase ^= stage / kStages & 1;
    stage %= kStages;
  }
};

__device__ inline std::byte* aligned_tiles(void* memory) {
  return static_cast<std::byte*>(memory) + (1024 - shared_address(memory) % 1024) % 1024;
}

// The shared memory of a block.
template <class Tile>
struct Shared {
  std::byte* tiles;    // kStages × (A's tile, B's tile)
  std::byte* buffers;  // kGroups × kBuffers
  Barrier *full, *empty, *extra;
  std::byte* bias;  // kGroups × kGroupCols

  // `memory` is a multiple of 1024 bytes.
  __device__ explicit Shared(std::byte* memory) {
    tiles = memory;
    buffers = tiles + Tile::kStages * Tile::kStageBytes;
    full = reinterpret_cast<Barrier*>(buffers + Tile::kBufferBytes);
    empty = full + Tile::kStages;
    extra = empty + Tile::kStages;
    bias = buffers + Tile::kBufferBytes + Tile::kBarrierBytes;
  }
  static_assert((2 * Tile::kStages + Tile::kGroups * Tile::kBuffers) * sizeof(Barrier) <=
                Tile::kBarrierBytes);

  __device__ void initialize_all(int helpers) const {
    for (int i = 0; i < Tile::kStages; ++i) {
      initialize(full + i, 1);
      initialize(empty + i, (4 * Tile::kTeam + helpers) * Tile::kCluster);
    }
    for (int i = 0; i < Tile::kGroups * Tile::kBuffers; ++i) initialize(extra + i, 4);
    fence_initialized_barriers();
  }
};

// Each warp calls this after it has read a stage. It frees the stage in every block of the cluster that
// copies to it.
template <int kCluster>
struct Release {
  Barrier* empty;
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ void operator()(int stage) const {
    if constexpr (kCluster == 1) {
      if (lane == 0) arrive(empty + stage);
    } else {
      if (lane < kCluster) arrive_at_block(empty + stage, lane);
    }
  }
};

}  // namespace warpwright::ops::matmul::cuda
