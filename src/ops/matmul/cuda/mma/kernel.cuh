// Products on the tensor cores of compute capability 8.0 and later, through mma.sync:
// C (rows, cols) = A (rows, depth) · B (depth, cols). Factors are bf16, fp16 or fp32 rounded to tf32. Sums
// are fp32.
//
//   slabs       a block copies 64 bytes of the depth of its tile at a time (cp.async). A ring of stages holds
//               the slab in use and those on their way (slab.cuh). The copies run ahead of the products, from
//               one tile into the next, so an epilogue does not empty the ring
//   warps       each has a part of the tile, and its sums in registers. ldmatrix reads the next step's
//               factors while mma.sync multiplies this step's
//   schedule    the tiles of each block, and its part of their depth (schedule.cuh, partial_sums.cuh)
//
// The order of a result's sums depends only on the cuts of the depth, not on the tile.
#pragma once

#include "ops/matmul/cuda/mma/slab.cuh"
#include "ops/matmul/cuda/partial_sums.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "ops/matmul/cuda/schedule.cuh"
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
  static constexpr int kThreads = kTile.threads(), kGroups = kThreads / 128;
  static constexpr bool kAligned = aligned;
  using A = Slab<In, kRows, a_transposed>;
  using B = Slab<In, kCols, b_transposed>;
  static constexpr int kDepth = A::kDepth, kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kProductRows = kWarpRows / 16, kProductCols = kWarpCols / 8;  // products of a warp
  static constexpr int kRowSums = kProductCols * 4;  // of a thread, in each of kProductRows
  using Sums = float[kProductRows][kRowSums];
  using PartOf = Part<kProductRows, kRowSums>;
  static_assert(kWarpRows <= 64 && kWarpCols <= 64, "Slab::take() swizzles parts of up to 64");
  static_assert(kThreads % 128 == 0 && kThreads * kProductRows * kRowSums == kRows * kCols);
  static_assert(kStages >= 3 && kSteps == 2);
};

// Copies the slabs of a block's pieces, one after the other.
template <class K>
class Feeder {
 public:
  using Parameters = mma::Parameters<typename K::In, typename K::Out>;
  __device__ Feeder(const Parameters& p, std::byte* ring, const typename K::Schedule& schedule)
      : p_(p), ring_(ring), schedule_(schedule) {}

  // Starts the next slab's copies into the next stage. After the last slab it copies zeros, because a branch
  // would keep the copies apart from the products.
  __device__ void feed() {
    if (slabs_ == 0) advance();
    std::byte* const stage = ring_ + stage_;
    a_.start(stage);
    b_.start(stage + K::A::kBytes);
    gpu::commit_copies();
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
  std::byte* ring_;
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

// If the depth of a tile is cut: hands the sums to the worker that owns the tile, or adds the sums of the
// others. Returns whether this worker finishes the tile.
template <class K, class Parameters>
__device__ bool exchange(const Parameters& p, typename K::Sums& sums, const Piece& piece,
                         const typename K::Schedule& schedule) {
  const int worker = static_cast<int>(blockIdx.x), group = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const auto part = [&](int w) {
    const std::int64_t index = static_cast<std::int64_t>(w) * K::kGroups + group;
    return typename K::PartOf{p.partials + index * (K::kRows * K::kCols / K::kGroups), p.flags + index,
                              1 + group, thread};
  };
  if (!piece.ends_tile) {
    part(worker).write(sums, 0, K::PartOf::kQuads);
    part(worker).raise_flag();
    return false;
  }
  if (piece.begin == 0) return true;
  const int first = schedule.first_worker_of(piece);
  take_flags(part(first).flag, K::kGroups, worker - first, 1 + group, thread);
#pragma unroll 1
  for (int w = worker - 1; w >= first; --w) {
    part(w).template add_to<K::kProductRows * K::kRowSums>(sums, 0);
  }
  return true;
}

// Stores a warp's part of the tile, whose first result is at (row, col). Neighbouring lanes exchange pairs,
// so that each has four neighbours of a row.
template <class K, class Parameters>
__device__ void store(const Parameters& p, const typename K::Sums& sums, int row, int col) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool odd = lane % 2 == 1;
  row += lane / 4;
  col += odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
  for (int j = 0; j < K::kProductCols; j += 2, col += 16) {
    float bias[4] = {};
    if (p.result.bias) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (col + e < p.b.side) bias[e] = gpu::to_float(p.result.bias[col + e]);
      }
    }
#pragma unroll
    for (int i = 0; i < K::kProductRows * 2; ++i) {
      const float* const mine = sums[i / 2] + 4 * j + i % 2 * 2;  // of the first product; + 4: of the second
      float four[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float got = __shfl_xor_sync(0xffffffff, odd ? mine[e] : mine[4 + e], 1);
        four[e] = (odd ? got : mine[e]) + bias[e];
        four[2 + e] = (odd ? mine[4 + e] : got) + bias[2 + e];
      }
      const int r = row + i * 8;
      if (r >= p.a.side) continue;
      if (p.packs && col + 4 <= p.b.side) {
        p.result.store_biased(r, col, four);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (col + e < p.b.side) p.result.store_biased(r, col + e, four[e]);
        }
      }
    }
  }
}

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kTile.blocks)
    multiply_kernel(const __grid_constant__ Parameters<typename K::In, typename K::Out> p) {
  extern __shared__ uint4 memory[];
  std::byte* const ring = reinterpret_cast<std::byte*>(memory);
  const std::uint32_t ring_address = gpu::shared_address(ring);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / (K::kCols / K::kWarpCols) * K::kWarpRows;
  const int warp_col = warp % (K::kCols / K::kWarpCols) * K::kWarpCols;
  typename K::Schedule schedule(p.work, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), K::kRows);
  Feeder<K> feeder(p, ring, schedule);
  const typename K::A::Reader a_reader(warp_row, true);
  const typename K::B::Reader b_reader(warp_col, false);

#pragma unroll
  for (int stage = 0; stage < K::kStages - 1; ++stage) feeder.feed();
  gpu::wait_for_groups<K::kStages - 2>();
  __syncthreads();
  std::uint32_t stage = ring_address;
  Fragments<K> fragments[kSteps];
  fragments[0].take(stage, a_reader, b_reader, 0);
  Piece piece;
  while (schedule.next(piece)) {
    typename K::Sums sums = {};
#pragma unroll 1
    for (int slab = piece.begin; slab < piece.end; ++slab) {
      fragments[1].take(stage, a_reader, b_reader, 1);
      feeder.feed();  // in place of the slab before, which no warp needs any more
      fragments[0].multiply(sums);
      gpu::wait_for_groups<K::kStages - 2>();
      __syncthreads();
      stage =
          stage == ring_address + (K::kStages - 1) * K::kStageBytes ? ring_address : stage + K::kStageBytes;
      fragments[0].take(stage, a_reader, b_reader, 0);  // the next slab's, which may be the next tile's
      fragments[1].multiply(sums);
    }
    if constexpr (K::Schedule::kCutsDepth) {
      if (!exchange<K>(p, sums, piece, schedule)) continue;
    }
    store<K>(p, sums, piece.row_tile * K::kRows + warp_row, piece.col_tile * K::kCols + warp_col);
  }
  gpu::wait_for_groups<0>();  // no copy of zeros outlives the block
}

}  // namespace warpwright::ops::matmul::cuda::mma
