// The exchange of partial sums between the blocks that share a tile, for kernels whose blocks have no
// cluster.
#pragma once

#include "ops/matmul/cuda/partial_sums.cuh"
#include "ops/matmul/cuda/schedule.cuh"

namespace warpwright::ops::matmul::cuda {

// If the depth of a tile is cut: hands the sums to the worker that owns the tile, or adds the sums of the
// others. Returns whether this worker finishes the tile. partials, flags: a Part of each group of 128 threads
// of each block.
template <int kBlocks, int kSums, class Schedule>
__device__ bool exchange(float (&sums)[kBlocks][kSums], const Piece& piece, const Schedule& schedule,
                         float* partials, unsigned* flags) {
  using PartOf = Part<kBlocks, kSums>;
  const int worker = static_cast<int>(blockIdx.x), groups = static_cast<int>(blockDim.x) / 128;
  const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  const auto part = [&](int w) {
    const std::int64_t index = static_cast<std::int64_t>(w) * groups + group;
    return PartOf{partials + index * (128 * kBlocks * kSums), flags + index, 1 + group, thread};
  };
  if (!piece.ends_tile) {
    part(worker).write(sums, 0, PartOf::kQuads);
    part(worker).raise_flag();
    return false;
  }
  if (piece.begin == 0) return true;
  constexpr int kAtOnce = 8;  // more reads on their way would not fit next to the sums
  const int first = schedule.first_worker_of(piece);
  take_flags(part(first).flag, groups, worker - first, 1 + group, thread);
#pragma unroll 1
  for (int w = worker - 1; w >= first; --w) {
#pragma unroll
    for (int i = 0; i < PartOf::kQuads; i += kAtOnce) {
      part(w).template add_to<4 * kAtOnce>(sums, i);
      __syncwarp();
    }
  }
  return true;
}

}  // namespace warpwright::ops::matmul::cuda
