// Products on Hopper's tensor cores: C (rows, cols) = A (rows, depth) · B (depth, cols), of bf16 or fp16
// summed in fp32, then an epilogue on the sums while they are in registers.
//
// A block has one warp that feeds a ring of slabs (64 terms of the depth) of both factors' tiles in shared
// memory through the tensor copy engine, and groups of four warps that multiply them (wgmma), the sums in
// registers: either side by side on one tile, or ("pingpong") each on a tile of its own, so that one
// multiplies while the other is at its epilogue. Two blocks of a cluster may share one factor's tile: each
// copies half of it to both.
//
// What of a tile lies outside the matrices is read as zeros and not written, so rows, cols and depth are
// free. The copy engine wants addresses and rows that are multiples of 16 bytes.
//
// Which tiles a block makes, and how much of the depth of each, is a schedule of its own (schedule.cuh); what
// becomes of the sums, a list of steps (Epilogue).
#pragma once

#include "ops/cuda/overlap.cuh"
#include "ops/matmul/cuda/hopper/consumer.cuh"
#include "ops/matmul/cuda/hopper/epilogue.cuh"
#include "ops/matmul/cuda/hopper/producer.cuh"
#include "ops/matmul/cuda/hopper/row_sums.cuh"

namespace warpwright::ops::matmul::cuda {

// Makes the barriers and fetches the maps of tensors, and returns when the whole cluster has done so.
template <class K>
__device__ void prepare(const Parameters& p, const Shared<typename K::Tile>& shared, int helpers) {
  using Tile = typename K::Tile;
  if (threadIdx.x == 0) shared.initialize_all(helpers);
  if (threadIdx.x == Tile::kGroups * kGroupThreads) {
    prefetch_map(&p.a);
    prefetch_map(&p.b);
    prefetch_map(&p.out);
    prefetch_map(&p.extra);
  }
  if constexpr (Tile::kCluster > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
}

template <class K>
__global__ void __launch_bounds__(K::Tile::kThreads, 1)
    multiply_kernel(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = typename K::Tile;
  extern __shared__ uint4 memory[];
  const Shared<Tile> shared(aligned_tiles(memory));
  const Place<Tile> place;
  const int group = group_of_threads();
  gpu::let_next_kernel_begin();

  const int helpers = K::Epilogue::kSumsRows && p.row_sums ? Tile::kRows / 64 : 0;  // warps that sum rows
  prepare<K>(p, shared, helpers);
  typename K::Schedule schedule(p.work, place.worker, static_cast<int>(gridDim.x) / Tile::kCluster,
                                Tile::kRows * Tile::kClusterDown);
  const Release<Tile::kCluster> release{shared.empty};
  if (group == Tile::kGroups) {
    give_registers<Tile::kProducerRegisters>();
    const int helper = warp_of_threads() - Tile::kGroups * 4 - 1;  // -1: the producer
    if (helper >= helpers) return;
    if constexpr (K::Epilogue::kSumsRows) {
      if (helper >= 0) sum_rows<K>(p, shared, place, schedule, helper, release);
    }
    if (helper < 0) produce<K>(p, shared, place, schedule);
    __syncwarp();
    if constexpr (Tile::kCluster > 1) cluster_barrier();
    return;
  }

  take_registers<Tile::kGroupRegisters>();
  Consumer<K>(p, shared, place, group, release).consume(schedule);
  if (elected()) wait_until_stores_have_read<0>();
  if constexpr (Tile::kCluster > 1) cluster_barrier();
#endif
}

}  // namespace warpwright::ops::matmul::cuda
