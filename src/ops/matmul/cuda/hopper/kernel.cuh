// Products on Hopper's tensor cores: C (rows, cols) = A (rows, depth) · B (depth, cols). Factors are bf16 or
// fp16, sums are fp32. An epilogue works on the sums while they are in registers.
//
//   producer     one warp feeds a ring of slabs (64 terms of the depth) of both factors' tiles in shared
//                memory, through the tensor copy engine (producer.cuh)
//   consumers    groups of four warps multiply the slabs (wgmma) and keep the sums in registers
//                (consumer.cuh). They share one tile, or each has its own ("pingpong"): then one group
//                multiplies while the other runs its epilogue
//   helpers      may sum rows of A in passing (row_sums.cuh)
//   epilogue     a list of steps (epilogue.cuh); results leave through shared memory (outlet.cuh)
//   schedule     the tiles of each block, and its part of their depth (schedule.cuh, partial_sums.cuh)
//
// Two blocks of a cluster may share the tile of one factor: each copies half of it to both.
//
// The copy engine reads zeros outside the matrices and writes nothing there, so rows, cols and depth are
// free. It needs addresses and rows that are multiples of 16 bytes.
#pragma once

#include "ops/cuda/overlap.cuh"
#include "ops/matmul/cuda/hopper/consumer.cuh"
#include "ops/matmul/cuda/hopper/epilogue.cuh"
#include "ops/matmul/cuda/hopper/producer.cuh"
#include "ops/matmul/cuda/hopper/row_sums.cuh"

namespace warpwright::ops::matmul::cuda {

// Initializes the barriers, prefetches the tensor maps, and returns once the whole cluster has done so.
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
  // The consumers request a residual before the producer, which waits by itself, has sent a slab.
  if (K::Epilogue::reads_matrix(p)) gpu::wait_for_kernels_before();
  Consumer<K>(p, shared, place, group, release).consume(schedule);
  if (elected()) wait_until_stores_have_read<0>();
  if constexpr (Tile::kCluster > 1) cluster_barrier();
#endif
}

}  // namespace warpwright::ops::matmul::cuda
