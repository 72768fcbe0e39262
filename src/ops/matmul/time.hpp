// The time that a product will take on Hopper's tensor cores: a roofline of a tile's inner loop, of the
// schedule's waves and of the device's memory, for our kernels and for cuBLASLt's. Pure functions.
#pragma once

#include <string>

#include "ops/matmul/costs.hpp"

namespace warpwright::ops::matmul {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The product that is asked for. extra: the epilogue reads or writes another matrix than the result.
struct Request {
  Direction direction = Direction::forward;
  Extent extent;
  DType dtype = DType::bf16;
  Activation activation = Activation::none;
  Finish finish = Finish::plain;
  bool extra = false, adds = false;
  bool row_sums = false;         // dw's dbias
  bool batch_invariant = false;  // the tile must not depend on the number of rows
  // Between a model's other kernels, in a graph: it begins while the one before runs, and before x is there
  // it copies weights (ops/cuda/overlap.cuh).
  bool in_step = false;
};
Request request_of(const MatmulForwardProblem& p);
Request request_of(const MatmulDxProblem& p);
Request request_of(const MatmulDwProblem& p);

// A kernel of cuBLASLt's, in our terms: the result's tile, the blocks of a cluster, the parts of the depth.
// Of its option's three bits the upper two say how warps share a tile, the lowest in what order tiles are
// made.
struct LibraryKernel {
  int rows = 128, cols = 128, cluster_down = 1, cluster_across = 1;
  int parts = 1;
  int option = 0;
};
// "128x256, clusters 2x1, depth in 3, option 5".
std::string describe(const LibraryKernel& kernel);

// Tiles of a product, or of its clusters.
inline std::int64_t tiles_of(const Extent& extent, const TileShape& tile) {
  return ceil_div(extent.rows, tile.rows * tile.cluster_down) *
         ceil_div(extent.cols, tile.cols * tile.cluster_across);
}
// tile: of kTiles. workers: blocks, or clusters of them, that walk over tiles.
double seconds_of(const Request& request, Schedule schedule, int tile, int workers,
                  const Costs& costs = costs_of_h200());
double seconds_of(const Request& request, const LibraryKernel& kernel, const Costs& costs = costs_of_h200());

}  // namespace warpwright::ops::matmul
