// A product's parameters, and what its kernel is made of.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/matmul/cuda/hopper/tile.cuh"
#include "ops/matmul/timeline.hpp"

namespace warpwright::ops::matmul::cuda {

// A matrix in device memory; stride in elements.
struct Matrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

struct Parameters {
  CUtensorMap a, b, out;
  CUtensorMap extra;              // a matrix of out's dtype that the epilogue reads or writes beside it
  Matrix plain_out, plain_extra;  // for threads that store by themselves
  const void* bias = nullptr;
  float scale = 1;
  bool add = false;           // out += (fp32)
  bool keeps = false;         // the epilogue writes extra
  bool adds_matrix = false;   // the epilogue reads extra, where it need not
  bool overlaps = false;      // B and bias may be read while the kernel before still runs
  float* row_sums = nullptr;  // (slabs, rows): SumRows
  Work work;
  Stamps* stamps = nullptr;   // of a traced schedule: (blocks, groups, kTracedTiles)
  float* partials = nullptr;  // of tiles whose depth is cut: a tile of sums for each block
  unsigned* flags =
      nullptr;  // for each group of each block: 1 where its partial sums stand; 0 before and after
};

template <class TileT, class InT, class OutT, bool a_transposed, bool b_transposed, class ScheduleT,
          class EpilogueT>
struct Kernel {
  using Tile = TileT;
  using In = InT;
  using Out = OutT;
  using Schedule = ScheduleT;
  using Epilogue = EpilogueT;
  // Whether the depth is the rows of A's, of B's matrix in memory, not its columns.
  static constexpr bool kATransposed = a_transposed, kBTransposed = b_transposed;
  // Of B's tile in shared memory.
  static constexpr int kBRowBytes = b_transposed ? 2 * slab_cols(Tile::kCols) : kRowBytes;
  // That are sent at once: a box's row, or half of one.
  static constexpr int kRowCols = kRowBytes / static_cast<int>(sizeof(Out));
  static constexpr int kChunkCols = Tile::kGroupCols % kRowCols == 0 ? kRowCols : kRowCols / 2;
  static constexpr int kChunkRowBytes = kChunkCols * static_cast<int>(sizeof(Out));
  static constexpr int kChunkSums = kChunkCols / 2;
  static constexpr int kChunks = Tile::kGroupCols / kChunkCols;
  static_assert(Tile::kGroupCols % kChunkCols == 0 && (kChunkCols == kRowCols || !Epilogue::kReadsMatrix));
  static constexpr int kSlots = Tile::kBuffers / Epilogue::kBoxes;  // places for chunks on their way out
  // Bytes that arrive for a stage.
  static constexpr int kStageBytes = Tile::kABytes + (kBTransposed ? Tile::kBBytes : Tile::kCols * kRowBytes);
};

}  // namespace warpwright::ops::matmul::cuda
