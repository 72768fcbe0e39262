// Small products on Hopper's tensor cores. The differences from kernel.cuh: the blocks of a cluster share one
// tile, and each multiplies an equal part of its depth. Each block then finishes an equal part of the rows.
// Blocks copy their sums of those rows to each other, from shared memory to shared memory, and add them in
// the order of the depth. No sums pass through device memory, and nobody waits for a block outside the
// cluster.
#pragma once

#include "ops/matmul/cuda/hopper/launch.cuh"

namespace warpwright::ops::matmul::cuda {

// A cluster's tile, its groups of warps, and the number of blocks that share its depth.
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
  // Sums in shared memory. Rows are eight banks apart, so that four rows of eight numbers cover all banks.
  // Each block finishes kFinished rows; the last may have fewer.
  static constexpr int kSumStride = cols + 8, kFinished = (rows + deep - 1) / deep;
  static constexpr int kSumRowBytes = kSumStride * 4;
  static constexpr int kReceivedBytes = deep * kFinished * kSumRowBytes;
  // Small tiles leave room for a second block on the multiprocessor.
  static constexpr int kLimit = kStageBytes <= 24 * 1024 ? kSharedLimit / 2 - 1024 : kSharedLimit;
  static constexpr int kStages = std::min((kLimit - 1024 - kBarrierBytes - kReceivedBytes) / kStageBytes, 8);
  static constexpr std::size_t kSharedBytes = 1024 + kStages * kStageBytes + kReceivedBytes + kBarrierBytes;
  static_assert(kStages >= 2 && kGroupRows % kBoxRows == 0 && deep > 1 && deep <= 8);
  static_assert(rows * kSumRowBytes <= kStages * kStageBytes);  // the sums fit in the ring
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
  // The producer, and the helpers that sum rows.
  static constexpr int kHelpers = Epilogue::kSumsRows ? Tile::kRows / 64 : 0;
  static constexpr int kThreads = Tile::kGroups * kGroupThreads + 32 * (1 + kHelpers);
};

// Two neighbours in each of two rows of a tile at their epilogue: a Chunk that a thread stores without the
// copy engine.
template <class K>
struct Quad {
  using In = typename K::In;
  using Out = typename K::Out;
  static constexpr int kSums = 4;

  const Parameters& parameters;
  int rows[2];  // the second is kNone if it is not this block's
  static constexpr int kNone = 0x7fffffff;
  int first_col;
  float v[kSums];

  // Brings the operands of the epilogue to the second-level cache.
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
        // Each element is added once, and nobody waits for the result.
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

// Waits for all groups.
template <class Tile>
__device__ void meet_groups() {
  named_barrier(1, Tile::kGroups * kGroupThreads);
}

// A block's shared memory. The sums of a tile take the place of the ring after its last use.
template <class Tile>
struct SplitShared {
  std::byte *tiles, *received;  // received: by block, then row
  Barrier *full, *empty, *all_received, *rows_summed;

  __device__ explicit SplitShared(std::byte* memory)
      : tiles(memory),
        received(tiles + Tile::kStages * Tile::kStageBytes),
        full(reinterpret_cast<Barrier*>(received + Tile::kReceivedBytes)),
        empty(full + Tile::kStages),
        all_received(empty + Tile::kStages),
        rows_summed(all_received + 1) {}

  __device__ void initialize_all(int helpers) const {
    for (int i = 0; i < Tile::kStages; ++i) {
      initialize(full + i, 1);
      initialize(empty + i, 4 * Tile::kGroups + helpers);
    }
    initialize(all_received, 1);
    initialize(rows_summed, max(helpers, 1));
    fence_initialized_barriers();
  }
};

// A block's part of its cluster's tile: the slabs that it multiplies and the rows that it finishes.
template <class Tile>
struct SplitPart {
  int rank;                // in the cluster
  int row, col;            // of the tile
  int first, finished;     // rows of the tile
  int begin = 0, end = 0;  // slabs

  // Neighbouring threads have neighbouring columns of the same two rows.
  static constexpr int kPairs = Tile::kCols / 2;
  __device__ int quads() const { return (finished + 1) / 2 * kPairs; }
  template <class K>
  __device__ Quad<K> quad(const Parameters& p, int index) const {
    const int r = first + index / kPairs * 2, last = first + finished - 1;
    return {p, {row + r, r < last ? row + r + 1 : Quad<K>::kNone}, col + index % kPairs * 2, {}};
  }
};

// Copies the slabs of this block's part of the depth.
template <class K>
__device__ void produce_split(const Parameters& p, const SplitShared<typename K::Tile>& shared,
                              const SplitPart<typename K::Tile>& part) {
  using Tile = typename K::Tile;
  const SplitShared<Tile> mine(kept_in_register(shared.tiles));
  const auto copy_a = [&](int slab, int stage) {
    copy_factor<Tile::kRows, K::kATransposed, 1>(mine.tiles + stage * Tile::kStageBytes, &p.a,
                                                 mine.full + stage, part.row, (part.begin + slab) * kSlab, 0,
                                                 1);
  };
  const auto copy_b = [&](int slab, int stage) {
    copy_factor<Tile::kCols, K::kBTransposed, 1>(mine.tiles + stage * Tile::kStageBytes + Tile::kABytes, &p.b,
                                                 mine.full + stage, part.col, (part.begin + slab) * kSlab, 0,
                                                 1);
  };
  const int slabs = part.end - part.begin;
  const int ahead = p.overlaps ? copy_weights_ahead<K>(mine.full, slabs, copy_b) : 0;
  gpu::wait_for_kernels_before();
  Cursor cursor;
  copy_slabs<K>(mine.full, mine.empty, slabs, ahead, cursor, copy_a, copy_b);
}

// Sums a group's part of the tile over this block's part of the depth, and stores the sums in shared memory.
template <class K>
__device__ void multiply_split(const SplitShared<typename K::Tile>& shared,
                               const SplitPart<typename K::Tile>& part, int group, int helpers,
                               const Release<1>& release) {
  using Tile = typename K::Tile;
  const int group_row = group / Tile::kGroupsAcross * Tile::kGroupRows;
  const int group_col = group % Tile::kGroupsAcross * Tile::kGroupCols;
  const std::uint64_t a_tile = describe_tile(shared.tiles + group_row * kRowBytes, kBoxBytes);
  const std::uint64_t b_tile = describe_b<K>(shared.tiles + Tile::kABytes + group_col * kRowBytes);
  Cursor cursor;
  float sum[Tile::kBlocks][Tile::kSums] = {};
  multiply_slabs<K>(sum, a_tile, b_tile, shared.full, part.end - part.begin, cursor, release);
  const Lane lane;
  if (helpers > 0) wait(shared.rows_summed, 0);
  meet_groups<Tile>();
#pragma unroll
  for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < Tile::kSums; i += 2) {
      const int r = group_row + b * kBoxRows + lane.row() + i / 2 % 2 * 8;
      const int c = group_col + i / 4 * 8 + lane.column();
      *reinterpret_cast<float2*>(shared.tiles + r * Tile::kSumRowBytes + c * 4) =
          make_float2(sum[b][i], sum[b][i + 1]);
    }
  }
  fence_stores_to_shared();
  meet_groups<Tile>();
}

// Copies to each other block the sums of the rows that it finishes.
template <class Tile>
__device__ void hand_out_sums(const SplitShared<Tile>& shared, int rank, int warp) {
  wait_for_cluster();  // the others' barriers are then initialized
  if (threadIdx.x % 32 == 0) {
    for (int d = warp; d < Tile::kDeep; d += 4 * Tile::kGroups) {
      const int there = d * Tile::kFinished, count = min(Tile::kFinished, Tile::kRows - there);
      if (d == rank || count <= 0) continue;
      copy_to_block(shared.received + rank * Tile::kFinished * Tile::kSumRowBytes,
                    shared.tiles + there * Tile::kSumRowBytes, count * Tile::kSumRowBytes,
                    shared.all_received, d);
    }
  }
  __syncwarp();
}

// Adds all blocks' sums of this block's rows in the order of the depth, and runs the epilogue.
template <class K>
__device__ void finish_split(const Parameters& p, const SplitShared<typename K::Tile>& shared,
                             const SplitPart<typename K::Tile>& part) {
  using Tile = typename K::Tile;
  if (part.finished > 0) wait(shared.all_received, 0);
#pragma unroll 1
  for (int i = threadIdx.x; i < part.quads(); i += Tile::kGroups * kGroupThreads) {
    Quad<K> quad = part.template quad<K>(p, i);
    const int at = i / part.kPairs * 2 * Tile::kSumRowBytes + i % part.kPairs * 8;
#pragma unroll
    for (int d = 0; d < Tile::kDeep; ++d) {
      const std::byte* const from =
          (d == part.rank ? shared.tiles + part.first * Tile::kSumRowBytes
                          : shared.received + d * Tile::kFinished * Tile::kSumRowBytes) +
          at;
      const float2 low = *reinterpret_cast<const float2*>(from);
      const float2 high = *reinterpret_cast<const float2*>(from + Tile::kSumRowBytes);
      quad.v[0] += low.x, quad.v[1] += low.y, quad.v[2] += high.x, quad.v[3] += high.y;
    }
    K::Epilogue::apply(quad);
  }
}

template <class K>
__device__ void consume_split(const Parameters& p, const SplitShared<typename K::Tile>& shared,
                              const SplitPart<typename K::Tile>& part, int group, int warp, int helpers,
                              const Release<1>& release) {
  using Tile = typename K::Tile;
  if (K::Epilogue::reads_matrix(p)) gpu::wait_for_kernels_before();
#pragma unroll 1
  for (int i = threadIdx.x; i < part.quads(); i += Tile::kGroups * kGroupThreads) {
    if (i % 16 == 0) part.template quad<K>(p, i).prefetch();
  }
  multiply_split<K>(shared, part, group, helpers, release);
  hand_out_sums<Tile>(shared, part.rank, warp);
  finish_split<K>(p, shared, part);
}

template <class K>
__global__ void __launch_bounds__(K::kThreads) split_kernel(const __grid_constant__ Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = typename K::Tile;
  extern __shared__ uint4 memory[];
  const SplitShared<Tile> shared(aligned_tiles(memory));
  const int rank = static_cast<int>(blockIdx.x) % Tile::kDeep;
  const int group = group_of_threads(), warp = warp_of_threads();
  const bool copies = threadIdx.x == Tile::kGroups * kGroupThreads;
  gpu::let_next_kernel_begin();
  if (copies) {
    prefetch_map(&p.a);
    prefetch_map(&p.b);
  }

  Block schedule(p.work, static_cast<int>(blockIdx.x) / Tile::kDeep, 1, Tile::kRows);
  Piece piece;
  if (!schedule.next(piece)) return;  // the same for all blocks of the cluster
  const int helpers = p.row_sums ? K::kHelpers : 0;
  const int first = rank * Tile::kFinished;
  SplitPart<Tile> part{rank, piece.row_tile * Tile::kRows, piece.col_tile * Tile::kCols, first,
                       min(Tile::kFinished, Tile::kRows - first)};
  if (copies) {
    shared.initialize_all(helpers);
    if (part.finished > 0) {
      arrive_expecting(shared.all_received, (Tile::kDeep - 1) * part.finished * Tile::kSumRowBytes);
    }
  }
  __syncthreads();
  arrive_at_cluster();
  part.begin = p.work.slabs * rank / Tile::kDeep, part.end = p.work.slabs * (rank + 1) / Tile::kDeep;
  const Release<1> release{shared.empty};

  if (group == Tile::kGroups) {
    const int helper = warp - Tile::kGroups * 4 - 1;  // -1: the producer
    if (helper < 0) produce_split<K>(p, shared, part);
    if constexpr (K::kHelpers > 0) {
      if (helper >= 0 && helper < helpers) {
        Cursor cursor;
        sum_rows_of_slabs<K>(p, shared.tiles, shared.full, piece.col_tile, p.work.col_tiles, part.row, helper,
                             part.begin, part.end, cursor, release);
        if (threadIdx.x % 32 == 0) arrive(shared.rows_summed);
      }
    }
    __syncwarp();
  } else {
    consume_split<K>(p, shared, part, group, warp, helpers, release);
  }
  __syncwarp();
  if (group == Tile::kGroups) wait_for_cluster();
  cluster_barrier();  // nobody leaves while others read its sums
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
