// One product on one machine: intensity and bound at every level, and the time that each schedule needs by
// this model. Everything is a pure function of its arguments.
//
// The model, for C (rows, cols) = A (rows, depth) · B (depth, cols) in tiles:
//   a K iteration    the longest of: tensor cores, shared memory (read and filled), a busy
//                    multiprocessor's share of L2, all of intensity.hpp
//   block            launch + waves × (latency + iterations + epilogue)
//   persistent       launch + latency + the busiest CTA's iterations + the last epilogue (the others pass
//                    under the next tile's iterations)
//   stream_k         persistent's, with the even split's iterations, and where tiles are shared the fix-up:
//                    handing over, a partial tile written, and the owner's reading of the others' one after
//                    the other (the a + b·[shared] + c·iterations + d·(contributors − 1) of arXiv:2301.03598,
//                    section 5.1)
//   any of them      at least launch + latency + device memory's bytes at its bandwidth
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "roofline/intensity.hpp"
#include "roofline/schedule.hpp"

namespace warpwright::roofline {

struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  Math math = Math::bf16;
  double out_bytes = 2;     // of a result's element
  bool accumulate = false;  // += : results are read too

  double flops() const;
  double compulsory_bytes() const;  // each matrix once
  double intensity() const { return flops() / compulsory_bytes(); }
};

// The three products of a linear layer y = x·Wᵀ for x (M, K), W (N, K); dw is fp32, +=.
enum class Direction : std::uint8_t { forward, dx, dw };
std::string_view name_of(Direction direction);
Direction direction_named(std::string_view name);
Product product_of(Direction direction, std::int64_t M, std::int64_t N, std::int64_t K, Math math);

// Costs that no data sheet gives. The defaults are an H200's, fitted to the same products as
// ops/matmul/selector.cpp: launch and latency together, and hand_over for the fix-up.
struct Costs {
  double launch = 4.4e-6;  // from the kernel before to the first instruction, and from the last to the next
  double latency = 1e-6;   // from a CTA's start to its first K iteration
  double hand_over = 4.6e-6;  // until an owner can read what other CTAs have written
};

struct Options {
  Tiling tiling;
  Mnk cluster{1, 1, 1};  // thread blocks (m, n) that work on neighbouring tiles and share factors
  std::int64_t blocks_per_multiprocessor = 1;
  Costs costs;
};

enum class Level : std::uint8_t { instruction, warp, block, l2, device };

// The position of the product under one level's roof.
struct LevelBound {
  Level level = Level::instruction;
  std::string what;             // "shared memory → registers"
  double intensity = 0;         // FLOP a byte that crosses it
  double bytes_per_second = 0;  // what it can give; 0: not known
  double attainable = 0;        // FLOP/s: intensity × bandwidth, the peak at most
  bool bounds = false;          // below the peak
  double ridge(double peak) const { return peak / bytes_per_second; }
};

// Tiles of a worker: of its whole cluster.
struct Tiles {
  std::int64_t rows = 0, cols = 0;              // of tiles
  std::int64_t iterations = 0;                  // over K
  std::int64_t group_rows = 0, group_cols = 0;  // tiles that run together, as near a square of C as fits
  double edge = 0;                              // the share of the tiles' products that are C's own
  Work work() const { return {rows * cols, iterations}; }
};
std::int64_t slots_of(const Machine& machine, const Options& options);  // for workers
// A UsageError where they are more than can be counted.
Tiles tiles_of(const Machine& machine, const Product& product, const Options& options);

// Bytes from device memory: each matrix once where the smaller factor stays in half of the L2; else the
// factors once for every group of tiles that run together.
double device_bytes(const Machine& machine, const Product& product, const Options& options);

std::vector<LevelBound> levels(const Machine& machine, const Product& product, const Options& options);

struct Iteration {
  double seconds = 0;      // of a CTA's K iteration
  std::string_view bound;  // "tensor cores", "multiply-adds", "shared memory", "L2", "device memory"
};
// With that many CTAs at work on the device: multiprocessors that have none leave their share of L2 to the
// others, as far as the way into a multiprocessor is wide.
Iteration iteration_of(const Machine& machine, const Product& product, const Options& options,
                       std::int64_t ctas);

struct Prediction {
  Split split;
  Tiling tiling;
  double seconds = 0;
  double main_loop = 0, overhead = 0, fix_up = 0, memory_floor = 0;  // seconds of it
  std::string_view bound;  // what an iteration waits for, or "device memory"
  double flops_per_second = 0;
  double share_of_peak = 0;
};
Prediction predict(const Machine& machine, const Product& product, const Options& options, Schedule schedule);
// With the tile that this schedule is fastest with, of candidate_tiles; options.tiling is not looked at.
Prediction predict_best(const Machine& machine, const Product& product, const Options& options,
                        Schedule schedule);
// On Hopper those of ops/matmul/selector.hpp.
std::vector<Mnk> candidate_tiles(const Machine& machine, Math math);

// A win that no timing could tell from noise is none: the plainer schedule stands.
inline constexpr double kNoticeable = 1.01;

// The winner over shapes: for each of `rows` by `cols`, at one depth.
struct MapCell {
  std::int64_t rows = 0, cols = 0;
  Schedule winner = Schedule::block;
  double over_block = 1;       // block's time over the winner's
  double over_persistent = 1;  // persistent's
  Prediction best;
};
// tile: of all schedules; without one, each has its best.
std::vector<MapCell> map_of(const Machine& machine, const Product& product, const Options& options,
                            const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols,
                            bool one_tile);

}  // namespace warpwright::roofline
