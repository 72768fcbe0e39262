#include "ops/matmul/selector.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/matmul/shares.hpp"

namespace warpwright::ops::matmul {
namespace {

// Of an H200, fitted to measured products of its models' shapes (docs/kernels.md).
constexpr double kMultiprocessorFlops = 6.2e12;  // of one multiprocessor's tensor cores at its highest clock
constexpr double kPowerFlops = 814e12;  // of all of them together, for as long as one likes: the power limit
constexpr double kTrafficEnergy = 1.8;  // FLOPs that a byte from the second-level cache costs in power
constexpr double kMemoryBandwidth = 4.8e12;
constexpr double kLaunch = 6.2e-6;        // until the first slab has come, and from the last one to the end
constexpr double kBlockStart = 1.5e-6;    // of a block that follows another one
constexpr double kFixUpLatency = 4.2e-6;  // until an owner can read what other workers have written
constexpr double kFixUpBandwidth = 76e9;  // bytes a second of partial sums, of one multiprocessor
constexpr double kActivation = 0.07e-9;   // seconds that an element's activation adds to the epilogue
constexpr double kDerivative = 0.1e-9;    // and that its derivative does
constexpr double kRowSums = 3e-6;         // what is left of a bias gradient when its product is done
constexpr double kMultiprocessors = 132;  // that the sums above are of

constexpr std::int64_t kSlab = 64;

// slab: seconds of one slab, times the multiprocessor's rate over its FLOPs. epilogue: seconds that nothing
// hides, with 16-bit results and with fp32 ones.
struct TileCost {
  double slab, epilogue16, epilogue32;
  double row_sums;  // that slabs take longer where dout's columns are summed as they pass
};
constexpr TileCost kCosts[kTileCount] = {
    {0.85, 2.6e-6, 1.1e-6, 0.03}, {0.95, 0.46e-6, 1.4e-6, 0.2},  {0.855, 0.7e-6, 5.7e-6, 0.06},
    {0.89, 0.5e-6, 6.0e-6, 0.06}, {0.94, 1.0e-6, 1.2e-6, 0.1},   {1.7, 0.1e-6, 1.4e-6, 0.0},
    {1.0, 1.0e-6, 0.7e-6, 0.11},  {0.95, 0.55e-6, 6.4e-6, 0.05},
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

double real(std::int64_t n) {
  return static_cast<double>(n);
}

// The larger of several bounds, and a little more where they are close: what is bound by two things overlaps
// them not quite.
template <class... Bounds>
double bound(Bounds... seconds) {
  constexpr double kSharpness = 8;
  const double most = std::max({seconds...});
  return most * std::pow((std::pow(seconds / most, kSharpness) + ...), 1 / kSharpness);
}

// Bytes that pass between device memory and the chip at least.
double memory_bytes(const Request& r) {
  const auto [rows, cols, depth] = r.extent;
  const double element = real(static_cast<std::int64_t>(size_of(r.dtype)));
  const double result = r.direction == Direction::dw ? (r.adds ? 8 : 4) : element;
  return (real(rows) * real(depth) + real(depth) * real(cols)) * element +
         real(rows) * real(cols) * (result + (r.extra ? element : 0));
}

// One tile shape under one schedule with so many workers.
double seconds_of(const Request& r, int index, Schedule schedule, std::int64_t tiles, int workers) {
  const TileShape& tile = kTiles[index];
  const TileCost& cost = kCosts[index];
  const double flops = 2.0 * tile.rows * tile.cols * kSlab;  // of a slab of a block's tile
  const double slab = cost.slab * flops / kMultiprocessorFlops * (r.row_sums ? 1 + cost.row_sums : 1);
  const double activation =
      r.activation == Activation::none
          ? 0
          : (r.direction == Direction::dx ? kDerivative : kActivation) * tile.rows * tile.cols;
  const double epilogue = (r.direction == Direction::dw ? cost.epilogue32 : cost.epilogue16) + activation;
  const std::int64_t slabs = ceil_div(r.extent.depth, kSlab);
  const double traffic = (1.0 * tile.rows / tile.cluster_across + 1.0 * tile.cols / tile.cluster_down) * 2 *
                         kSlab;  // bytes of a slab
  const double all_slabs = real(tiles) * tile.cluster() * real(slabs);
  const double power = all_slabs * (flops + kTrafficEnergy * traffic) / kPowerFlops;
  double memory = memory_bytes(r);
  double compute = 0, fix_up = 0;
  if (schedule != Schedule::stream_k) {
    const double start = schedule == Schedule::block ? kBlockStart : 0;
    compute = real(ceil_div(tiles, workers)) * (real(slabs) * slab + epilogue + start);
  } else {
    const std::int64_t whole = whole_tiles(tiles, workers), cut = tiles - whole;
    compute = real(whole / workers) * (real(slabs) * slab + epilogue);
    if (cut > 0) {
      const int sharers = sharers_of(cut * slabs, slabs, workers);
      compute += real(cut * slabs) / sharers * slab + 2 * epilogue;
      const double part = 4.0 * tile.rows * tile.cols;
      fix_up = kFixUpLatency + real(ceil_div(sharers, cut)) * part / kFixUpBandwidth;
      if (sharers % cut == 0) fix_up -= part / kFixUpBandwidth;
      // Workers are at the same depth, and share what they read, where as many of them have whole tiles
      // between them.
      const auto together = real(std::gcd(cut, static_cast<std::int64_t>(sharers)));
      const double strips = (1.0 * tile.rows * tile.cluster_down + 1.0 * tile.cols * tile.cluster_across) *
                            std::ceil(std::sqrt(together)) * real(cut) / together;
      if (sharers % cut != 0) memory = std::max(memory, strips * real(r.extent.depth) * 2);
    }
  }
  if (r.row_sums) fix_up += kRowSums;
  return kLaunch + fix_up + bound(compute, power, memory / kMemoryBandwidth);
}

}  // namespace

Selection select(const Request& r, Schedule schedule, const DeviceInfo& device) {
  int only = -1;
  if (r.batch_invariant) {
    Request typical = r;
    typical.batch_invariant = false;
    typical.extent.rows = 1024;
    only = select(typical, schedule, device).tile;
  }
  Selection best;
  for (int index = 0; index < kTileCount; ++index) {
    if (!offers(r.direction, r.dtype, r.activation, index, schedule)) continue;
    if (r.batch_invariant && index != only) continue;
    const TileShape& tile = kTiles[index];
    const std::int64_t row_tiles = ceil_div(r.extent.rows, tile.rows * tile.cluster_down);
    const std::int64_t tiles = row_tiles * ceil_div(r.extent.cols, tile.cols * tile.cluster_across);
    const int most = std::max(device.gpu.multiprocessors / tile.cluster(), 1);
    const auto consider = [&](int workers) {
      const double seconds = seconds_of(r, index, schedule, tiles, workers) *
                             (kMultiprocessors / std::max(device.gpu.multiprocessors, 1));
      if (best.tile >= 0 && seconds >= best.seconds) return;
      best.tile = index;
      best.workers = workers;
      // Narrow rasters keep the rows of a large product in the cache while its columns pass.
      best.raster = r.direction != Direction::dw && r.extent.rows >= 16384 ? 4 : 16;
      best.seconds = seconds;
      if (schedule != Schedule::stream_k) return;
      best.partial_bytes = static_cast<std::size_t>(workers) *
                           static_cast<std::size_t>(tile.cluster() * tile.rows * tile.cols) * 4;
    };
    if (tiles == 0) {
      consider(1);
    } else if (schedule != Schedule::stream_k) {
      consider(static_cast<int>(std::min<std::int64_t>(tiles, most)));
      if (schedule == Schedule::block)
        best.workers = static_cast<int>(std::min<std::int64_t>(tiles, 1 << 24));
    } else {
      consider(most);
      // As many for each tile: nobody has parts of two tiles.
      if (tiles < most) consider(static_cast<int>(most / tiles * tiles));
    }
  }
  return best;
}

Request request_of(const MatmulForwardProblem& p) {
  return {Direction::forward, extent_of(p), p.dtype, p.activation, p.preact, false, false, p.batch_invariant};
}
Request request_of(const MatmulDxProblem& p) {
  return {Direction::dx, extent_of(p), p.dtype, p.activation, p.activation != Activation::none, false};
}
Request request_of(const MatmulDwProblem& p) {
  return {Direction::dw, extent_of(p), p.dtype, Activation::none, false, p.store == Store::add, p.bias};
}

double library_seconds(const Request& r) {
  // Of the algorithms that its heuristic proposes, by direction; what its epilogues add; a bias gradient is a
  // pass of its own over dout.
  constexpr double kFlops[] = {720e12, 760e12, 740e12}, kFusedActivation = 0.3;
  constexpr double kColumnSumsBandwidth = 3.5e12;
  const double flops = 2 * real(r.extent.rows) * real(r.extent.cols) * real(r.extent.depth);
  const double compute = flops / kFlops[static_cast<int>(r.direction)];
  const double sums = r.row_sums ? kRowSums + real(r.extent.rows) * real(r.extent.depth) *
                                                  real(static_cast<std::int64_t>(size_of(r.dtype))) /
                                                  kColumnSumsBandwidth
                                 : 0;
  return kLaunch + sums +
         bound(compute * (r.activation == Activation::none ? 1 : 1 + kFusedActivation),
               memory_bytes(r) / kMemoryBandwidth);
}

}  // namespace warpwright::ops::matmul
