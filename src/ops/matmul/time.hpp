// Predicts the time of a product on Hopper's tensor cores, for our kernels and for cuBLASLt's. The model is a
// roofline of a tile's inner loop, of the schedule's waves and of the device's memory. costs.hpp explains it.
// All functions are pure.
#pragma once

#include <string>

#include "ops/matmul/costs.hpp"

namespace warpwright::ops::matmul {

// Bytes per second between device memory and our own kernels that pass over a matrix once, on an H200.
inline constexpr double kPassBandwidth = 3.5e12;

// The properties of a product on which its time depends.
//   extra   the epilogue reads or writes a second matrix, such as preact or residual
//   adds    the epilogue adds to the result (+=), so it also reads it
struct Request {
  Direction direction = Direction::forward;
  Extent extent;
  DType dtype = DType::bf16;
  Activation activation = Activation::none;
  Finish finish = Finish::plain;
  bool extra = false, adds = false;
  bool row_sums = false;         // dw also computes dbias
  bool batch_invariant = false;  // the tile must not depend on the number of rows
  // The product runs between a model's other kernels, in a graph. It begins while the kernel before it still
  // runs, and copies weights until x is complete (ops/cuda/overlap.cuh).
  bool in_step = false;
};
Request request_of(const MatmulForwardProblem& p);
Request request_of(const MatmulDxProblem& p);
Request request_of(const MatmulDwProblem& p);

// A kernel of cuBLASLt in our terms.
//   rows, cols   the tile, in elements
//   cluster_…    blocks of a cluster
//   parts        parts into which the depth is cut
//   option       three bits: the upper two select how warps share a tile, the lowest the order of the tiles
struct LibraryKernel {
  int rows = 128, cols = 128, cluster_down = 1, cluster_across = 1;
  int parts = 1;
  int option = 0;
};
// "128x256, clusters 2x1, depth in 3, option 5".
std::string describe(const LibraryKernel& kernel);

// Number of a product's tiles, or of its clusters' tiles.
inline std::int64_t tiles_of(const Extent& extent, const TileShape& tile) {
  return ceil_div(extent.rows, tile.rows * tile.cluster_down) *
         ceil_div(extent.cols, tile.cols * tile.cluster_across);
}
// The predicted seconds of a kernel on the GPU of `costs`. tile: index in kTiles. workers: blocks, or
// clusters, that walk over the tiles.
double seconds_of(const Request& request, Schedule schedule, int tile, int workers,
                  const Costs& costs = costs_of_h200());
double seconds_of(const Request& request, const LibraryKernel& kernel, const Costs& costs = costs_of_h200());

}  // namespace warpwright::ops::matmul
