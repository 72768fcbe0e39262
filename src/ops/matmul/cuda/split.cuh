// Small products on Hopper's tensor cores: as wgmma.cuh, but the blocks of a cluster share one tile, each
// with an equal part of its depth. Each finishes an equal part of the tile: what a block has summed of
// another one's part it copies there, from shared memory to shared memory, where the parts are added in the
// order of the depth. No sums pass through device memory, and nobody waits for a block outside of the
// cluster.
#pragma once

#include "ops/matmul/cuda/wgmma.cuh"

namespace warpwright::ops::matmul::cuda {

// A cluster's tile, its groups of warps, and the blocks that share its depth.
template <int rows, int cols, int groups_down, int groups_across, int deep>
struct SplitTile {
  static constexpr int kRows = rows, kCols = cols, kDeep = deep;
  static constexpr int kGroupsAcross = groups_across, kGroups = groups_down * groups_across;
  static constexpr int kGroupRows = rows / groups_down, kGroupCols = cols / groups_across;
  static constexpr int kBlocks = kGroupRows / kBoxRows, kSums = kGroupCols / 2;
  static constexpr int kClusterDown = 1, kClusterAcross = 1;
  static constexpr int kABytes = rows * kRowBytes, kBBytes = bytes_of_b(cols);
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kBarrierBytes = 256;
  // Sums in shared memory: rows eight banks apart, so that four rows of eight are all banks. Each block
  // finishes so many rows; the last may have fewer.
  static constexpr int kSumStride = cols + 8, kFinished = (rows + deep - 1) / deep;
  static constexpr int kSumRowBytes = kSumStride * 4;
  static constexpr int kReceivedBytes = deep * kFinished * kSumRowBytes;
  // Small tiles leave room for a second block.
  static constexpr int kLimit = kStageBytes <= 24 * 1024 ? kSharedLimit / 2 - 1024 : kSharedLimit;
  static constexpr int kStages = std::min((kLimit - 1024 - kBarrierBytes - kReceivedBytes) / kStageBytes, 8);
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kReceivedBytes + kBarrierBytes;
  static_assert(kStages >= 2 && kGroupRows % kBoxRows == 0 && deep > 1 && deep <= 8);
  static_assert(rows * kSumRowBytes <= kStages * kStageBytes);  // sums on their way out
};

template <class TileT, class InT, class OutT, bool a_transposed, bool b_transposed, class EpilogueT>
struct SplitKernel {
  using Tile = TileT;
  using In = InT;
  using Out = OutT;
  using Epilogue = EpilogueT;
  static constexpr bool kATransposed = a_transposed, kBTransposed = b_transposed;
  static constexpr int kBRowBytes = b_transposed ? 2 * slab_cols(Tile::kCols) : kRowBytes;
  static constexpr int kStageBytes = Tile::kABytes + (kBTransposed ? Tile::kBBytes : Tile::kCols * kRowBytes);
  // The copying warp, and those that sum rows.
  static constexpr int kHelpers = Epilogue::kSumsRows ? Tile::kRows / 64 : 0;
  static constexpr int kThreads = Tile::kGroups * kGroupThreads + 32 * (1 + kHelpers);
};

// Two neighbours of two rows of a tile at their epilogue, as a Chunk that a thread sends by itself.
template <class K>
struct Quad {
  using In = typename K::In;
  using Out = typename K::Out;
  static constexpr int kSums = 4;

  const Parameters& parameters;
  int rows[2];  // the second may be none of this block's: kNone
  static constexpr int kNone = 0x7fffffff;
  int first_col;
  float v[kSums];

  // What the epilogue will read, to the second-level cache.
  __device__ void prefetch() const {
    const auto line = [](const void* at) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(at)); };
    const auto& [out, out_stride] = parameters.plain_out;
    const auto& [extra, extra_stride] = parameters.plain_extra;
    for (int r = 0; r < 2; ++r) {
      if (!inside(r)) continue;
      if (parameters.add) line(static_cast<const Out*>(out) + rows[r] * out_stride + first_col);
      if (K::Epilogue::reads_matrix(parameters)) {
        line(static_cast<const Out*>(extra) + rows[r] * extra_stride + first_col);
      }
      if (parameters.bias) line(static_cast<const In*>(parameters.bias) + first_col);
    }
  }
  __device__ bool inside(int r) const {
    return rows[r] < parameters.work.rows && first_col < parameters.work.cols;
  }
  __device__ gpu::Packed<In, 2> bias(int) const {
    if (first_col >= parameters.work.cols) return gpu::Packed<In, 2>::zero();
    return gpu::Packed<In, 2>::load(static_cast<const In*>(parameters.bias) + first_col);
  }
  __device__ void begin() const {}
  __device__ void send() const {}
  template <class F>
  __device__ void with_matrix(F&& f) {
    if (!K::Epilogue::reads_matrix(parameters)) return;
    const auto& [data, stride] = parameters.plain_extra;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!inside(r)) continue;
      const auto pair =
          gpu::Packed<Out, 2>::load(static_cast<const Out*>(data) + rows[r] * stride + first_col);
      v[2 * r] = f(v[2 * r], pair[0]);
      v[2 * r + 1] = f(v[2 * r + 1], pair[1]);
    }
  }
  __device__ void write(int index) const {
    const auto& [data, stride] = index == 0 ? parameters.plain_out : parameters.plain_extra;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!inside(r)) continue;
      Out* const to = static_cast<Out*>(const_cast<void*>(data)) + rows[r] * stride + first_col;
      if constexpr (sizeof(Out) == 2) {
        *reinterpret_cast<std::uint32_t*>(to) = gpu::detail::Pair<Out>::of(v[2 * r], v[2 * r + 1]);
      } else {
        // Once for each element, and nobody waits for the sum.
        if (parameters.add) {
          asm volatile("red.global.add.v2.f32 [%0], {%1, %2};\n" ::"l"(to), "f"(v[2 * r]), "f"(v[2 * r + 1])
                       : "memory");
        } else {
          *reinterpret_cast<float2*>(to) = make_float2(v[2 * r], v[2 * r + 1]);
        }
      }
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads) split_kernel(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = typename K::Tile;
  using In = typename K::In;
  constexpr int kStages = Tile::kStages, kDeep = Tile::kDeep;
  extern __shared__ uint4 memory[];
  std::byte* const tiles =
      reinterpret_cast<std::byte*>(memory) + (1024 - shared_address(memory) % 1024) % 1024;
  std::byte* const received = tiles + kStages * Tile::kStageBytes;  // by block, then piece
  Barrier* const full = reinterpret_cast<Barrier*>(received + Tile::kReceivedBytes);
  Barrier *const empty = full + kStages, *const all_received = empty + kStages;
  Barrier* const rows_summed = all_received + 1;
  const int rank = static_cast<int>(blockIdx.x) % kDeep;
  const int group = group_of_threads();
  const int warp = warp_of_threads(), warp_lane = static_cast<int>(threadIdx.x) % 32;
  const bool copies = threadIdx.x == Tile::kGroups * kGroupThreads;
  gpu::let_next_kernel_begin();
  if (copies) {
    prefetch_map(&p.a);
    prefetch_map(&p.b);
  }

  Block schedule(p.work, static_cast<int>(blockIdx.x) / kDeep, 1, Tile::kRows);
  Piece piece;
  if (!schedule.next(piece)) return;  // nor has any block of the cluster a tile
  const int helpers = p.row_sums ? K::kHelpers : 0;
  const int first = rank * Tile::kFinished;  // of the rows of the tile that this block finishes
  const int finished = min(Tile::kFinished, Tile::kRows - first);
  if (copies) {
    for (int i = 0; i < kStages; ++i) {
      initialize(full + i, 1);
      initialize(empty + i, 4 * Tile::kGroups + helpers);
    }
    initialize(all_received, 1);
    initialize(rows_summed, max(helpers, 1));
    fence_initialized_barriers();
    if (finished > 0) arrive_expecting(all_received, (kDeep - 1) * finished * Tile::kSumRowBytes);
  }
  __syncthreads();
  arrive_at_cluster();
  const int row = piece.row_tile * Tile::kRows, col = piece.col_tile * Tile::kCols;
  const int begin = p.work.slabs * rank / kDeep, end = p.work.slabs * (rank + 1) / kDeep;
  const auto release = [&](int stage) {
    if (warp_lane == 0) arrive(empty + stage);
  };
  // Threads beside each other have neighbouring columns of the same two rows.
  constexpr int kPairs = Tile::kCols / 2;
  const int quads = (finished + 1) / 2 * kPairs;
  const auto quad_of = [&](int index) {
    const int r = first + index / kPairs * 2, last = first + finished - 1;
    return Quad<K>{p, {row + r, r < last ? row + r + 1 : Quad<K>::kNone}, col + index % kPairs * 2, {}};
  };
  Cursor cursor;

  if (group == Tile::kGroups) {
    const int helper = warp - Tile::kGroups * 4 - 1;  // -1: the copying warp
    if (helper < 0) {
      std::byte* const to = kept_in_register(tiles);
      Barrier* const arrived =
          reinterpret_cast<Barrier*>(to + kStages * Tile::kStageBytes + Tile::kReceivedBytes);
      const auto copy_a = [&](int slab, int stage) {
        copy_factor<Tile::kRows, K::kATransposed, 1>(to + stage * Tile::kStageBytes, &p.a, arrived + stage,
                                                     row, (begin + slab) * kSlab, 0, 1);
      };
      const auto copy_b = [&](int slab, int stage) {
        copy_factor<Tile::kCols, K::kBTransposed, 1>(to + stage * Tile::kStageBytes + Tile::kABytes, &p.b,
                                                     arrived + stage, col, (begin + slab) * kSlab, 0, 1);
      };
      const int ahead = p.overlaps ? copy_weights_ahead<K>(arrived, end - begin, copy_b) : 0;
      gpu::wait_for_kernels_before();
      copy_slabs<K>(arrived, arrived + kStages, end - begin, ahead, cursor, copy_a, copy_b);
    }
    if constexpr (K::kHelpers > 0) {
      if (helper >= 0 && helper < helpers) {
        sum_rows_of_slabs<K>(p, tiles, full, piece.col_tile, p.work.col_tiles, row, helper, begin, end,
                             cursor, release);
        if (warp_lane == 0) arrive(rows_summed);
      }
    }
    __syncwarp();
  } else {
    const int group_row = group / Tile::kGroupsAcross * Tile::kGroupRows;
    const int group_col = group % Tile::kGroupsAcross * Tile::kGroupCols;
    const std::uint64_t a_tile = describe_tile(tiles + group_row * kRowBytes, kBoxBytes);
    const std::uint64_t b_tile = describe_b<K>(tiles + Tile::kABytes + group_col * kRowBytes);
#pragma unroll 1
    for (int i = threadIdx.x; i < quads; i += Tile::kGroups * kGroupThreads) {
      if (i % 16 == 0) quad_of(i).prefetch();
    }
    float sum[Tile::kBlocks][Tile::kSums] = {};
    multiply_slabs<K>(sum, a_tile, b_tile, full, end - begin, cursor, release);
    // Behind the ring's last use, the sums take its place.
    std::byte* const sums = tiles;
    const Lane lane;
    const auto meet = [&] { named_barrier(1, Tile::kGroups * kGroupThreads); };
    if (helpers > 0) wait(rows_summed, 0);
    meet();
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < Tile::kSums; i += 2) {
        const int r = group_row + b * kBoxRows + lane.row() + i / 2 % 2 * 8;
        const int c = group_col + i / 4 * 8 + lane.column();
        *reinterpret_cast<float2*>(sums + r * Tile::kSumRowBytes + c * 4) =
            make_float2(sum[b][i], sum[b][i + 1]);
      }
    }
    fence_stores_to_shared();
    meet();
    wait_for_cluster();  // their barriers are initialized
    if (warp_lane == 0) {
      for (int d = warp; d < kDeep; d += 4 * Tile::kGroups) {
        const int there = d * Tile::kFinished, count = min(Tile::kFinished, Tile::kRows - there);
        if (d == rank || count <= 0) continue;
        copy_to_block(received + rank * Tile::kFinished * Tile::kSumRowBytes,
                      sums + there * Tile::kSumRowBytes, count * Tile::kSumRowBytes, all_received, d);
      }
    }
    __syncwarp();
    if (finished > 0) wait(all_received, 0);
#pragma unroll 1
    for (int i = threadIdx.x; i < quads; i += Tile::kGroups * kGroupThreads) {
      Quad<K> quad = quad_of(i);
      const int at = i / kPairs * 2 * Tile::kSumRowBytes + i % kPairs * 8;
#pragma unroll
      for (int d = 0; d < kDeep; ++d) {
        const std::byte* const from = (d == rank ? sums + first * Tile::kSumRowBytes
                                                 : received + d * Tile::kFinished * Tile::kSumRowBytes) +
                                      at;
        const float2 low = *reinterpret_cast<const float2*>(from);
        const float2 high = *reinterpret_cast<const float2*>(from + Tile::kSumRowBytes);
        quad.v[0] += low.x, quad.v[1] += low.y, quad.v[2] += high.x, quad.v[3] += high.y;
      }
      K::Epilogue::apply(quad);
    }
  }
  __syncwarp();
  if (group == Tile::kGroups) wait_for_cluster();
  cluster_barrier();  // nobody leaves while its sums are being copied
#endif
}

template <class K>
void launch_split(const Product& product, Parameters p, cudaStream_t stream, std::string_view what) {
  using Tile = typename K::Tile;
  gpu::allow_shared(split_kernel<K>, Tile::kSharedBytes);
  cudaLaunchAttribute attributes[] = {{}, gpu::overlap_attribute()};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = Tile::kDeep;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  const std::int64_t tiles = (product.rows + Tile::kRows - 1) / Tile::kRows * p.work.col_tiles;
  config.gridDim = dim3(static_cast<unsigned>(tiles * Tile::kDeep));
  config.blockDim = dim3(K::kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = p.overlaps ? 2 : 1;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, split_kernel<K>, p), what);
}

}  // namespace warpwright::ops::matmul::cuda
