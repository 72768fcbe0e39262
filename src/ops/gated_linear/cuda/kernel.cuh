// The frame of fused products, here and in rotated_linear: a persistent product on Hopper's tensor cores
// (ops/matmul/cuda/hopper) whose epilogue works on two columns of the product at once. Two groups of four
// warps take turns: one multiplies its tile while the other runs the epilogue of the tile before. A producer
// warp feeds both. Two blocks of a cluster have tiles below each other and share B's.
//
// A fused product D has
//   K               the product's constants (matmul::cuda::Kernel)
//   kCols           columns of a tile, in the epilogue's count
//   Parameters      of the kernel: `product`, and whatever D needs
//   produce(…)      the producer: copies the slabs of both factors
//   Epilogue        begin(row, col) before the tile is multiplied, finish(sums) after it
#pragma once

#include "ops/gated_linear/cuda/epilogue.cuh"
#include "ops/matmul/cuda/hopper/kernel.cuh"
#include "ops/matmul/cuda/hopper/launch.cuh"

namespace warpwright::ops::gated_linear::cuda {

// A group's tiles: every second one of its worker.
template <class D>
class Consumer {
  using K = typename D::K;
  using Tile = typename K::Tile;
  static constexpr int kTurn = 1;  // barrier kTurn + g: group g may multiply

 public:
  __device__ Consumer(const typename D::Parameters& p, const Shared<Tile>& shared, int group)
      : shared_(shared),
        group_(group),
        epilogue_(p, shared, group),
        a_tile_(hopper::describe_tile(shared.tiles, kBoxBytes)),
        b_tile_(matmul::cuda::describe_b<K>(shared.tiles + Tile::kABytes)) {}

  __device__ void consume(typename K::Schedule& schedule, const Place<Tile>& place) {
    const matmul::cuda::Release<Tile::kCluster> release{shared_.empty};
    Piece piece, following;
    bool more = schedule.next(piece);
    if (group_ == 1 && more) {
      give_turn(0);  // the other group begins
      skip(piece);
      more = schedule.next(piece);
    }
    while (more) {
      epilogue_.begin(place.first_row(piece), place.col_tile(piece) * D::kCols);
      hopper::named_barrier(kTurn + group_, 2 * kGroupThreads);
      const bool other_more = schedule.next(following);
      float sums[Tile::kBlocks][Tile::kSums] = {};
      matmul::cuda::multiply_slabs<K>(sums, a_tile_, b_tile_, shared_.full, piece.end, cursor_, release, [&] {
        if (other_more) give_turn(1 - group_);
      });
      epilogue_.finish(sums);
      if (!other_more) break;
      skip(following);
      more = schedule.next(piece);
    }
  }

 private:
  __device__ void give_turn(int group) { hopper::arrive_at_named_barrier(kTurn + group, 2 * kGroupThreads); }
  __device__ void skip(const Piece& piece) { cursor_.template advance<Tile::kStages>(piece.end); }

  const Shared<Tile>& shared_;
  int group_;
  typename D::Epilogue epilogue_;
  std::uint64_t a_tile_, b_tile_;
  matmul::cuda::Cursor cursor_;
};

template <class D>
__global__ void __launch_bounds__(D::K::Tile::kThreads, 1)
    fused_kernel(const __grid_constant__ typename D::Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using K = typename D::K;
  using Tile = typename K::Tile;
  extern __shared__ uint4 memory[];
  const Shared<Tile> shared(matmul::cuda::aligned_tiles(memory));
  const Place<Tile> place;
  const int group = matmul::cuda::group_of_threads();
  gpu::let_next_kernel_begin();
  matmul::cuda::prepare<K>(p.product, shared, 0);
  typename K::Schedule schedule(p.product.work, place.worker, static_cast<int>(gridDim.x) / Tile::kCluster,
                                Tile::kRows * Tile::kClusterDown);
  if (group == Tile::kGroups) {
    hopper::give_registers<Tile::kProducerRegisters>();
    if (matmul::cuda::warp_of_threads() > 4 * Tile::kGroups) return;  // one warp copies
    D::produce(p, shared, place, schedule);
    __syncwarp();
  } else {
    hopper::take_registers<Tile::kGroupRegisters>();
    Consumer<D>(p, shared, group).consume(schedule, place);
    if (hopper::elected()) hopper::wait_until_stores_have_read<0>();
  }
  hopper::cluster_barrier();
#endif
}

// The kernel before has ended: an epilogue reads matrices without waiting for it.
template <class D>
void launch(const typename D::Parameters& p, int workers, cudaStream_t stream, std::string_view what) {
  using Tile = typename D::K::Tile;
  gpu::allow_shared(fused_kernel<D>, Tile::kSharedBytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Tile::kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers * Tile::kCluster));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, fused_kernel<D>, p), what);
}

}  // namespace warpwright::ops::gated_linear::cuda
