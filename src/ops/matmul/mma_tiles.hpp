// The tiles of the kernels on mma.sync, and a choice among them. The kernels themselves include this file, so
// it depends on nothing that only the host needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace warpwright::ops::matmul {

// A block's tile of the result, the part of each of its warps, the bytes of the depth in a slab, the slabs in
// shared memory and the blocks that a multiprocessor holds at once.
struct MmaTile {
  int rows, cols, warp_rows, warp_cols, slab_bytes, stages, blocks;

  constexpr int threads() const { return rows / warp_rows * (cols / warp_cols) * 32; }
  constexpr int shared_bytes() const { return (rows + cols) * slab_bytes * stages; }
  // The most that a thread can have if all blocks fit.
  constexpr int registers() const { return std::min(65536 / (threads() * blocks) / 8 * 8, 255); }
};
// In bf16, 128 bytes are 64 terms: the first is 128 × 256 × 64 with warps of 64 × 64 × 64, and so on.
inline constexpr MmaTile kMmaTiles[] = {
    {128, 256, 64, 64, 128, 3, 1}, {128, 128, 64, 64, 128, 3, 2}, {64, 64, 32, 32, 128, 3, 3},
    {128, 256, 64, 64, 64, 4, 1},  {128, 128, 64, 64, 64, 3, 2},  {64, 64, 32, 32, 64, 3, 4},
    {64, 256, 64, 64, 64, 3, 2},   {64, 128, 32, 64, 64, 4, 2},   {128, 64, 64, 32, 64, 4, 2},
};
inline constexpr int kMmaTileCount = static_cast<int>(std::size(kMmaTiles));
inline constexpr int kUnalignedMmaTile = 4;  // has the kernels that load factors element by element

struct MmaSelection {
  int tile = -1;  // index in kMmaTiles; -1: no kernel fits
  bool aligned = true;
  int workers = 0;  // blocks
  int raster = 1;   // tiles that follow each other down the rows before the next column of tiles
  double seconds = 0;
  std::size_t partial_bytes = 0;  // workspace for partial sums of tiles whose depth is cut
};
}  // namespace warpwright::ops::matmul
