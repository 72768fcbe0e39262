// Which tile a product on Hopper's tensor cores is made of, and what it will take: a roofline of the tile's
// inner loop, of the schedule's waves and of the device's memory. A pure function of problem and device,
// without a table.
#pragma once

#include <iterator>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul {

enum class Direction : std::uint8_t { forward, dx, dw };

// The tiles that there are kernels of: of a block, its groups of warps on one tile (one: two groups take
// turns), the blocks of its cluster.
struct TileShape {
  int rows, cols, groups_down, groups_across, cluster_down, cluster_across;

  constexpr bool pingpong() const { return groups_down * groups_across == 1; }
  constexpr int cluster() const { return cluster_down * cluster_across; }
};
enum TileIndex : int {
  k128x256,
  k128x128,
  k128x192,
  k128x192Alone,
  k128x128Block,
  k64x128,
  k128x192Team,
  k128x160
};
inline constexpr TileShape kTiles[] = {
    {128, 256, 2, 1, 2, 1}, {128, 128, 1, 1, 2, 1}, {128, 192, 1, 1, 2, 1}, {128, 192, 1, 1, 1, 1},
    {128, 128, 2, 1, 1, 1}, {64, 128, 1, 2, 1, 1},  {128, 192, 2, 1, 2, 1}, {128, 160, 1, 1, 1, 2},
};
inline constexpr int kTileCount = static_cast<int>(std::size(kTiles));

// What is asked for. extra: matrices beside the result that the epilogue reads or writes.
struct Request {
  Direction direction = Direction::forward;
  Extent extent;
  DType dtype = DType::bf16;
  Activation activation = Activation::none;
  bool extra = false, adds = false;
  bool row_sums = false;         // dw's dbias
  bool batch_invariant = false;  // the tile must not depend on the number of rows
};

// Whether there is a kernel for it: those that were the fastest somewhere. fp16 has fewer than bf16.
constexpr bool offers(Direction direction, DType dtype, Activation activation, int tile, Schedule schedule) {
  const bool half = dtype == DType::f16;
  if (dtype != DType::bf16 && !half) return false;
  if (schedule == Schedule::block) return activation == Activation::none && tile == k128x128Block;
  if (schedule == Schedule::stream_k) {
    if (activation != Activation::none) return false;
    switch (direction) {
      case Direction::forward:
        return tile == k64x128 || (!half && tile == k128x192);
      case Direction::dx:
        return tile == k64x128 || (!half && tile == k128x128);
      default:
        return tile == k128x128 || (!half && (tile == k128x256 || tile == k128x192Team || tile == k128x160));
    }
  }
  switch (direction) {
    case Direction::forward:
      if (activation == Activation::gelu_erf) return tile == k128x192 || tile == k64x128;
      if (activation == Activation::gelu_tanh) {
        return tile == k128x192 || (!half && (tile == k128x128 || tile == k128x192Alone || tile == k64x128));
      }
      return tile == k128x192 || tile == k128x192Alone || tile == k64x128 || (!half && tile == k128x128);
    case Direction::dx:
      if (activation == Activation::gelu_erf) return tile == k128x128;
      if (activation == Activation::gelu_tanh)
        return tile == k128x128 || (!half && (tile == k128x256 || tile == k64x128));
      return tile == k128x128 ||
             (!half && (tile == k128x192 || tile == k128x192Alone || tile == k64x128 || tile == k128x256));
    default:
      return activation == Activation::none &&
             (tile == k128x128Block || (!half && (tile == k128x192 || tile == k64x128 || tile == k128x160)));
  }
}

struct Selection {
  int tile = -1;    // in kTiles; -1: there is none
  int workers = 0;  // blocks or clusters of them
  int raster = 1;
  double seconds = 0;
  std::size_t partial_bytes = 0;  // of sums of tiles whose depth is cut
};
Selection select(const Request& request, Schedule schedule, const DeviceInfo& device);

// What cuBLASLt takes.
double library_seconds(const Request& request);

Request request_of(const MatmulForwardProblem& p);
Request request_of(const MatmulDxProblem& p);
Request request_of(const MatmulDwProblem& p);

}  // namespace warpwright::ops::matmul
