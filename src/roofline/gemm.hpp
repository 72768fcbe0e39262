// Predicts one product on one machine: intensity and bound at every level of memory, and the time of each
// schedule. Every function is pure.
//
// The model, for C (rows, cols) = A (rows, depth) · B (depth, cols) in tiles:
//   a K iteration    the longest of: tensor cores, shared memory (read and filled), a busy
//                    multiprocessor's share of L2, all from intensity.hpp
//   block            launch + waves × (latency + iterations + epilogue)
//   persistent       launch + latency + the busiest CTA's iterations + the last epilogue (the next tile's
//                    iterations hide the others)
//   stream_k         as persistent, with the iterations of the even split. Shared tiles add the fix-up: the
//                    hand-over, the writing of a partial tile, and the owner's reading of the partial tiles
//                    one after the other (a + b·[shared] + c·iterations + d·(contributors − 1) in
//                    arXiv:2301.03598, section 5.1)
//   every schedule   at least launch + latency + device memory's bytes at its bandwidth
#pragma once

#include <string>
#include <vector>

#include "roofline/direction.hpp"
#include "roofline/intensity.hpp"
#include "roofline/schedule.hpp"

namespace warpwright::roofline {

struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  Math math = Math::bf16;
  double out_bytes = 2;     // per element of the result
  bool accumulate = false;  // +=: the product also reads C

  double flops() const;
  double compulsory_bytes() const;  // every matrix moves once
  double intensity() const { return flops() / compulsory_bytes(); }
};

// dw is fp32 and accumulates (+=).
Product product_of(Direction direction, std::int64_t M, std::int64_t N, std::int64_t K, Math math);

// Costs that no data sheet gives. The defaults are fitted to measurements on an H200, on the same products as
// ops/matmul/selector.cpp: first launch and latency together, then hand_over from the fix-up.
struct Costs {
  double launch = 4.4e-6;  // from the previous kernel to the first instruction, and from the last instruction
                           // to the next kernel
  double latency = 1e-6;   // from a CTA's start to its first K iteration
  double hand_over = 4.6e-6;  // until an owner can read what the other CTAs wrote
};

struct Options {
  Tiling tiling;
  Mnk cluster{1, 1, 1};  // thread blocks (m, n) that work on neighbouring tiles and share operands
  std::int64_t blocks_per_multiprocessor = 1;
  Costs costs;
};

enum class Level : std::uint8_t { instruction, warp, block, l2, device };

// The product's position under one level's roof.
struct LevelBound {
  Level level = Level::instruction;
  std::string what;             // "shared memory → registers"
  double intensity = 0;         // FLOP per byte that crosses this level
  double bytes_per_second = 0;  // the level's bandwidth; 0: unknown
  double attainable = 0;        // FLOP/s: the smaller of intensity × bandwidth and the peak
  bool bounds = false;          // attainable is below the peak
  double ridge(double peak) const { return peak / bytes_per_second; }
};

// The grid of tiles. A worker is a cluster, so a tile here covers the tiles of all its thread blocks.
struct Tiles {
  std::int64_t rows = 0, cols = 0;  // the grid's size
  std::int64_t iterations = 0;      // K iterations of a tile
  // The concurrent tiles, as the rectangle of C that reads the fewest bytes.
  std::int64_t group_rows = 0, group_cols = 0;
  double edge = 0;  // useful multiply-adds over those of the padded tiles
  Work work() const { return {rows * cols, iterations}; }
};
std::int64_t slots_of(const Machine& machine, const Options& options);  // how many workers run at once
// Throws UsageError if there are more tile iterations than 64 bits can count.
Tiles tiles_of(const Machine& machine, const Product& product, const Options& options);

// Bytes read and written in device memory. Every matrix moves once if the smaller operand fits into half of
// L2. Otherwise each group of concurrent tiles reads its operands again.
double device_bytes(const Machine& machine, const Product& product, const Options& options);

std::vector<LevelBound> levels(const Machine& machine, const Product& product, const Options& options);

struct Iteration {
  double seconds = 0;      // of one CTA
  std::string_view bound;  // "tensor cores", "multiply-adds", "shared memory", "L2", "device memory"
};
// The time of a K iteration with `ctas` CTAs on the device. Idle multiprocessors leave their share of L2 to
// the busy ones, up to the width of a multiprocessor's port.
Iteration iteration_of(const Machine& machine, const Product& product, const Options& options,
                       std::int64_t ctas);

struct Prediction {
  Split split;
  Tiling tiling;
  double seconds = 0;
  double main_loop = 0, overhead = 0, fix_up = 0, memory_floor = 0;  // parts of `seconds`
  std::string_view bound;  // the limit of a K iteration, or "device memory"
  double flops_per_second = 0;
  double share_of_peak = 0;
};
Prediction predict(const Machine& machine, const Product& product, const Options& options,
                   const Split& split);
// The same for the schedule's own split. stream_k takes the number of CTAs with the shortest time.
Prediction predict(const Machine& machine, const Product& product, const Options& options, Schedule schedule);
// The fastest of candidate_tiles for this schedule. Ignores options.tiling.
Prediction predict_best(const Machine& machine, const Product& product, const Options& options,
                        Schedule schedule);
// The tiles to try. On Hopper these are the tiles of ops/matmul/selector.hpp.
std::vector<Mnk> candidate_tiles(const Machine& machine, Math math);

// A schedule must win by this factor to replace a simpler one. Smaller wins are below timing noise.
inline constexpr double kNoticeable = 1.01;

// The winning schedule for one (rows, cols) at a given depth.
struct MapCell {
  std::int64_t rows = 0, cols = 0;
  Schedule winner = Schedule::block;
  double over_block = 1;       // block's time over the winner's time
  double over_persistent = 1;  // persistent's time over the winner's time
  Prediction best;
};
// one_tile: all schedules use options.tiling. Otherwise each schedule uses its fastest tile.
std::vector<MapCell> map_of(const Machine& machine, const Product& product, const Options& options,
                            const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols,
                            bool one_tile);

}  // namespace warpwright::roofline
