// The parameters of a product, and the constants of its kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/matmul/cuda/hopper/tile.cuh"
#include "ops/matmul/timeline.hpp"

namespace warpwright::ops::matmul::cuda {

// A matrix in device memory. The stride counts elements.
struct Matrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

struct Parameters {
  CUtensorMap a, b, out;
  CUtensorMap extra;              // a second matrix of out's dtype, which the epilogue reads or writes
  Matrix plain_out, plain_extra;  // for threads that store without the copy engine
  const void* bias = nullptr;
  float scale = 1;
  bool add = false;           // out += (fp32)
  bool keeps = false;         // the epilogue writes extra
  bool adds_matrix = false;   // the epilogue reads extra, if that is optional
  bool overlaps = false;      // B and bias may be read before the previous kernel ends
  float* row_sums = nullptr;  // (slabs, rows): SumRows
  Work work;
  Stamps* stamps = nullptr;   // (blocks, groups, kTracedTiles), if the schedule is traced
  float* partials = nullptr;  // a tile of sums for each block, if the depth of tiles is cut
  unsigned* flags = nullptr;  // per group of each block: 1 while its partial sums are ready, otherwise 0
};

template <class TileT, class InT, class OutT, bool a_transposed, bool b_transposed, class ScheduleT,
          class EpilogueT>
struct Kernel {
  using Tile = TileT;
  using In = InT;
  using Out = OutT;
  using Schedule = ScheduleT;
  using Epilogue = EpilogueT;
  // True if the rows of the matrix in memory, not its columns, are the depth.
  static constexpr bool kATransposed = a_transposed, kBTransposed = b_transposed;
  // A row of B's tile in shared memory.
  static constexpr int kBRowBytes = b_transposed ? 2 * slab_cols(Tile::kCols) : kRowBytes;
  // The part of a box that is sent at once: its rows, or half of each.
  static constexpr int kRowCols = kRowBytes / static_cast<int>(sizeof(Out));
  static constexpr int kChunkCols = Tile::kGroupCols % kRowCols == 0 ? kRowCols : kRowCols / 2;
  static constexpr int kChunkRowBytes = kChunkCols * static_cast<int>(sizeof(Out));
  static constexpr int kChunkSums = kChunkCols / 2;
  static constexpr int kChunks = Tile::kGroupCols / kChunkCols;
  static_assert(Tile::kGroupCols % kChunkCols == 0 && (kChunkCols == kRowCols || !Epilogue::kReadsMatrix));
  static constexpr int kSlots = Tile::kBuffers / Epilogue::kBoxes;  // places for chunks on their way out
  // The bytes that arrive for a stage.
  static constexpr int kStageBytes = Tile::kABytes + (kBTransposed ? Tile::kBBytes : Tile::kCols * kRowBytes);
};

}  // namespace warpwright::ops::matmul::cuda
