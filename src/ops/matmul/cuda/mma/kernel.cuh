// Products on the tensor cores of compute capability 8.0 and later, through mma.sync:
// C (rows, cols) = A (rows, depth) · B (depth, cols). Factors are bf16, fp16 or fp32 rounded to tf32. Sums
// are fp32.
//
//   slabs       a block copies 64 or 128 bytes of the depth of its tile at a time (cp.async). A ring of
//   stages holds
//               the slab in use and those on their way (slab.cuh). The copies run ahead of the products, from
//               one tile into the next, so an epilogue does not empty the ring
//   warps       each has a part of the tile, and its sums in registers. ldmatrix reads the next step's
//               factors while mma.sync multiplies this step's
//   schedule    the tiles of each block, and its part of their depth (schedule.cuh, cut_tiles.cuh)
//
// The order of a result's sums depends only on the cuts of the depth, not on the tile.
#pragma once

#include "ops/matmul/cuda/cut_tiles.cuh"
#include "ops/matmul/cuda/mma/slab.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/mma_tiles.hpp"

namespace warpwright::ops::matmul::cuda::mma {

template <class T, class Out>
struct Parameters {
  Factor<T> a, b;
  Result<T, Out> result;
  bool packs = false;  // the rows of the result and of the residual begin at multiples of 16 bytes
  Work work;
  float* partials = nullptr;  // a tile of sums for each block, if depths are cut
  unsigned* flags = nullptr;  // per group of each block: 1 while its partial sums are ready, otherwise 0
};

// a_transposed, b_transposed: the rows of the matrix in memory, not its columns, are the depth.
// aligned: the rows of both factors begin at multiples of 16 bytes.
template <int tile, class InT, class OutT, bool a_transposed, bool b_transposed, bool aligned,
          class ScheduleT>
struct Kernel {
  using In = InT;
  using Out = OutT;
  using Schedule = ScheduleT;
  static constexpr MmaTile kTile = kMmaTiles[tile];
  static constexpr int kRows = kTile.rows, kCols = kTile.cols, kStages = kTile.stages;
  static constexpr int kWarpRows = kTile.warp_rows, kWarpCols = kTile.warp_cols;
  static constexpr int kThreads = kTile.threads();
  static constexpr bool kAligned = aligned;
  using A = Slab<In, kRows, kTile.slab_bytes, a_transposed>;
  using B = Slab<In, kCols, kTile.slab_bytes, b_transposed>;
  static constexpr int kDepth = A::kDepth, kSteps = kTile.slab_bytes / kStepBytes;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kProductRows = kWarpRows / 16, kProductCols = kWarpCols / 8;  // products of a warp
  static constexpr int kRowSums = kProductCols * 4;  // of a thread, in each of kProductRows
  using Sums = float[kProductRows][kRowSums];
  static_assert(kWarpRows <= 64 && kWarpCols <= 64, "Slab::take() swizzles parts of up to 64");
  static_assert(kThreads % 128 == 0 && kThreads * kProductRows * kRowSums == kRows * kCols);
  static_assert(kStages >= 3 && kSteps % 2 == 0);
};

// Copies the slabs of a block's pieces, one after the other.
template <class K>
class Feeder {
 public:
  using Parameters = mma::Parameters<typename K::In, typename K::Out>;
  __device__ Feeder(const Parameters& p, std::uint32_t ring, const typename K::Schedule& schedule)
      : p_(p), ring_(ring), schedule_(schedule) {}

  // Starts one of the equal parts of the next slab's copies into the next stage. After the last slab it
  // copies zeros, because a branch would keep the copies apart from the products.
  __device__ void feed(int part = 0, int parts = 1) {
    if (part == 0 && slabs_ == 0) advance();
    const std::uint32_t stage = ring_ + stage_;
    a_.start(p_.a, stage, part, parts);
    b_.start(p_.b, stage + K::A::kBytes, part, parts);
    if (part < parts - 1) return;
    gpu::cp_async_commit_group();
    --slabs_;
    stage_ = stage_ == (K::kStages - 1) * K::kStageBytes ? 0 : stage_ + K::kStageBytes;
  }

 private:
  // Goes on to the next piece.
  __device__ void advance() {
    Piece piece;
    do {
      if (!schedule_.next(piece)) {
        a_.end();
        b_.end();
        slabs_ = K::kStages;
        return;
      }
      slabs_ = piece.end - piece.begin;
    } while (slabs_ == 0);
    const int k0 = piece.begin * K::kDepth;
    a_.begin(p_.a, piece.row_tile * K::kRows, k0);
    b_.begin(p_.b, piece.col_tile * K::kCols, k0);
  }

  const Parameters& p_;
  std::uint32_t ring_;
  typename K::Schedule schedule_;
  typename K::A::template Copies<K::kThreads, K::kAligned> a_;
  typename K::B::template Copies<K::kThreads, K::kAligned> b_;
  int slabs_ = 0;  // left of the piece
  int stage_ = 0;  // the byte of the ring where the next stage begins
};

// A warp's factors for one step.
template <class K>
struct Fragments {
  std::uint32_t a[K::kProductRows][4], b[K::kProductCols / 2][4];

  __device__ void take(std::uint32_t stage, const typename K::A::Reader& a_reader,
                       const typename K::B::Reader& b_reader, int step) {
#pragma unroll
    for (int i = 0; i < K::kProductRows; ++i) K::A::take(a[i], stage, a_reader, i, step, true);
#pragma unroll
    for (int j = 0; j < K::kProductCols / 2; ++j) {
      K::B::take(b[j], stage + K::A::kBytes, b_reader, j, step, false);
    }
  }
  __device__ void multiply(typename K::Sums& sums) const {
#pragma unroll
    for (int i = 0; i < K::kProductRows; ++i) {
#pragma unroll
      for (int n = 0; n < K::kProductCols; ++n) {
        const int j = i % 2 == 0 ? n : K::kProductCols - 1 - n;  // neighbours share a register
        float* const c = sums[i] + 4 * j;
        gpu::multiply<typename K::In>(c[0], c[1], c[2], c[3], a[i], b[j / 2][j % 2 * 2],
                                      b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// In one access: the compiler would split some of them.
template <class Out>
__device__ void store_together(Out* to, const gpu::Packed<Out, 4>& four) {
  if constexpr (sizeof(Out) == 4) {
    const auto& words = reinterpret_cast<const uint4&>(four);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
  } else {
    const auto& words = reinterpret_cast<const uint2&>(four);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};\n" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
  }
}

// Stores a warp's part of the tile, whose first result is at (row, col). Eight rows at a time pass through
// shared memory. Neighbouring lanes then have neighbours of a row, and store whole lines. free: a stage of
// the ring that no warp reads and no copy fills.
template <class K, class Parameters>
__device__ void store(const Parameters& p, const typename K::Sums& sums, std::uint32_t free, int row,
                      int col) {
  using Out = typename K::Out;
  constexpr unsigned kEach = 4, kRowLanes = K::kWarpCols / kEach, kRowsAtOnce = 32 / kRowLanes;
  constexpr unsigned kRowBytes = K::kWarpCols * sizeof(float), kTurns = K::kWarpRows / 8,
                     kCount = 8 / kRowsAtOnce;
  static_assert(K::kThreads / 32 * 8 * kRowBytes <= K::kStageBytes);
  unsigned thread;  // read anew, or all that follows from it would be kept in registers during the products
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  const unsigned lane = thread % 32, my_row = lane / kRowLanes, my_col = lane % kRowLanes;
  free += thread / 32 * 8 * kRowBytes;
  // Chunks of 16 bytes are swizzled, so that the four rows which half a warp writes are in different banks.
  const auto swizzled = [](unsigned r, unsigned bytes) { return r * kRowBytes + (bytes ^ r % 4 * 32); };
  const unsigned written = swizzled(lane / 4, lane % 4 * 8), read = swizzled(my_row, my_col * 16);
  const int rows = p.a.side - row;
  row += static_cast<int>(my_row), col += static_cast<int>(my_col * kEach);
  Out* to = p.result.data + row * p.result.stride + col;
  const Out* from = p.result.residual + row * p.result.residual_stride + col;
  const bool together = p.packs && col + static_cast<int>(kEach) <= p.b.side;
  const bool adds = p.result.residual;
  float bias[kEach] = {};
  if (together && p.result.bias) {
#pragma unroll
    for (unsigned e = 0; e < kEach; ++e) bias[e] = gpu::to_float(p.result.bias[col + e]);
  }
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const bool fast = together && static_cast<int>(turn * 8 + 8) <= rows;
    gpu::Packed<Out, kEach> residual[kCount];
    if (fast && adds) {
#pragma unroll
      for (unsigned n = 0; n < kCount; ++n, from += kRowsAtOnce * p.result.residual_stride) {
        residual[n] = gpu::Packed<Out, kEach>::load(from);
      }
    }
#pragma unroll
    for (unsigned j = 0; j < K::kProductCols; ++j) {
      const float* const two = sums[turn / 2] + 4 * j + turn % 2 * 2;
      store_two(free + (written ^ j * 32), two[0], two[1]);
    }
    __syncwarp();
    if (fast) {
#pragma unroll
      for (unsigned n = 0; n < kCount; ++n) {
        float four[kEach];
        load_four(four, free + n * kRowsAtOnce * kRowBytes + (read ^ n * kRowsAtOnce % 4 * 32));
#pragma unroll
        for (unsigned e = 0; e < kEach; ++e) {
          four[e] = (four[e] + bias[e]) * p.result.scale;
          if (adds) four[e] += residual[n][e];
        }
        store_together(to, gpu::Packed<Out, kEach>::from_floats(four));
        to += kRowsAtOnce * p.result.stride;
      }
    } else {
#pragma unroll 1
      for (unsigned i = 0; i < kCount * kEach; ++i) {
        const unsigned down = i / kEach * kRowsAtOnce, e = i % kEach;
        const int r = row + static_cast<int>(turn * 8 + down), c = col + static_cast<int>(e);
        if (r < p.a.side && c < p.b.side) {
          p.result.store(r, c,
                         __uint_as_float(load_word(free + swizzled(my_row + down, my_col * 16) + e * 4)));
        }
      }
    }
    __syncwarp();
  }
}

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kTile.blocks)
    multiply_kernel(const __grid_constant__ Parameters<typename K::In, typename K::Out> p) {
  extern __shared__ uint4 memory[];
  const std::uint32_t first_stage = gpu::shared_address(memory);
  const std::uint32_t last_stage = first_stage + (K::kStages - 1) * K::kStageBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / (K::kCols / K::kWarpCols) * K::kWarpRows;
  const int warp_col = warp % (K::kCols / K::kWarpCols) * K::kWarpCols;
  typename K::Schedule schedule(p.work, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), K::kRows);
  Feeder<K> feeder(p, first_stage, schedule);
  const typename K::A::Reader a_reader(warp_row, true);
  const typename K::B::Reader b_reader(warp_col, false);

#pragma unroll
  for (int stage = 0; stage < K::kStages - 1; ++stage) feeder.feed();
  gpu::cp_async_wait_group<K::kStages - 2>();
  __syncthreads();
  std::uint32_t stage = first_stage;
  Fragments<K> fragments[2];
  Piece piece;
  while (schedule.next(piece)) {
    typename K::Sums sums = {};
    fragments[0].take(stage, a_reader, b_reader, 0);
#pragma unroll 1
    for (int slab = piece.begin; slab < piece.end; ++slab) {
#pragma unroll
      for (int step = 0; step < K::kSteps; ++step) {
        const int next = (step + 1) % K::kSteps;
        if (next == 0) {
          gpu::cp_async_wait_group<K::kStages - 2>();
          __syncthreads();
          stage = stage == last_stage ? first_stage : stage + K::kStageBytes;
        }
        fragments[next % 2].take(stage, a_reader, b_reader, next);  // may be the next tile's
        // In place of the slab before, which no warp needs any more.
        if (next > 0) feeder.feed(step, K::kSteps - 1);
        fragments[step % 2].multiply(sums);
      }
    }
    if constexpr (K::Schedule::kCutsDepth) {
      if (!exchange(sums, piece, schedule, p.partials, p.flags)) continue;
    }
    const std::uint32_t free = stage == first_stage ? last_stage : stage - K::kStageBytes;
    store<K>(p, sums, free, piece.row_tile * K::kRows + warp_row, piece.col_tile * K::kCols + warp_col);
    __syncthreads();  // the next copies go there
  }
  gpu::cp_async_wait_group<0>();  // no copy of zeros outlives the block
}

}  // namespace warpwright::ops::matmul::cuda::mma
