#include "ops/matmul/selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/matmul/shares.hpp"
#include "ops/matmul/table.hpp"

namespace warpwright::ops::matmul {
namespace {

// Of an H200, fitted to measured times of every kernel on some sixty layers of its models' shapes and others
// (docs/gemm.md).
constexpr double kMultiprocessorFlops = 6.2e12;  // of one multiprocessor's tensor cores at its highest clock
constexpr double kPowerFlops = 871e12;   // of all of them together, for as long as one likes: the power limit
constexpr double kTrafficEnergy = 3.96;  // FLOPs that a byte from the second-level cache costs in power
constexpr double kMemoryBandwidth = 4.54e12;
constexpr double kLaunch = 5.90e-6;  // until the first slab has come, and from the last one to the end
constexpr double kGradientLaunch = 1.39e-6;   // more of it where fp32 sums go out
constexpr double kBlockStart = 1.5e-6;        // of a block that follows another one
constexpr double kFixUpLatency = 2.14e-6;     // until other workers' sums can be read
constexpr double kFixUpBandwidth = 63e9;      // bytes a second of partial sums, of one multiprocessor
constexpr double kExchangeLatency = 1.21e-6;  // between the blocks of a cluster
constexpr double kExchangeBandwidth = 71e9;
constexpr double kTransposed[] = {1, 0.996, 1.047};  // slabs by direction
constexpr double kActivation = 0.097e-9;  // seconds that an element's activation adds to the epilogue
constexpr double kDerivative = 0.151e-9;  // and that its derivative does
constexpr double kSharpness = 6.36;
constexpr double kRowSums = 3e-6;         // what is left of a bias gradient when its product is done
constexpr double kMultiprocessors = 132;  // that the sums above are of

constexpr std::int64_t kSlab = 64;
constexpr std::int64_t kMostBlocks = 1 << 24;

// slab: seconds of one slab, times the multiprocessor's rate over its FLOPs. epilogue: seconds that nothing
// hides, with 16-bit results and with fp32 ones.
struct TileCost {
  double slab, epilogue16, epilogue32;
  double row_sums;  // that slabs take longer where dout's columns are summed as they pass
};
constexpr TileCost kCosts[kTileCount] = {
    {0.795, 2.20e-6, 4.48e-6, 0.03},  // k128x256
    {0.931, 0.50e-6, 2.41e-6, 0.20},  // k128x128
    {0.765, 1.61e-6, 2.00e-6, 0.06},  // k128x192
    {0.964, 0.55e-6, 2.00e-6, 0.06},  // k128x192Alone
    {0.872, 0.74e-6, 1.95e-6, 0.10},  // k128x128Team
    {1.061, 0.64e-6, 1.33e-6, 0.00},  // k64x128
    {0.946, 1.00e-6, 2.51e-6, 0.11},  // k128x192Team
    {0.856, 1.30e-6, 2.00e-6, 0.11},  // k128x192TeamAlone
    {0.900, 1.00e-6, 2.00e-6, 0.05},  // k128x160
    {0.900, 1.00e-6, 2.00e-6, 0.05},  // k128x160Down
    {1.149, 0.87e-6, 2.00e-6, 0.10},  // k64x64Deep8
    {1.149, 0.87e-6, 2.00e-6, 0.10},  // k64x64Deep4
    {1.149, 0.87e-6, 2.00e-6, 0.10},  // k64x64Deep2
    {0.901, 1.29e-6, 5.95e-6, 0.10},  // k128x128Deep4
    {0.901, 1.29e-6, 5.95e-6, 0.10},  // k128x128Deep3
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
double bound(double sharpness, Bounds... seconds) {
  const double most = std::max({seconds...});
  return most * std::pow((std::pow(seconds / most, sharpness) + ...), 1 / sharpness);
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
  const int direction = static_cast<int>(r.direction);
  const double area = 1.0 * tile.rows * tile.cols, part = 4 * area;
  const double flops = 2 * area * kSlab;  // of a slab of a block's tile
  const double slab = cost.slab * kTransposed[direction] * flops / kMultiprocessorFlops *
                      (r.row_sums ? 1 + cost.row_sums : 1);
  const double activation = r.activation == Activation::none
                                ? 0
                                : (r.direction == Direction::dx ? kDerivative : kActivation) * area;
  const double epilogue = (r.direction == Direction::dw ? cost.epilogue32 : cost.epilogue16) + activation;
  const std::int64_t slabs = ceil_div(r.extent.depth, kSlab);
  const double traffic = (1.0 * tile.rows / tile.cluster_across + 1.0 * tile.cols / tile.cluster_down) * 2 *
                         kSlab;  // bytes of a slab
  const double all_slabs = real(tiles) * tile.cluster() * real(slabs);
  const double power = all_slabs * (flops + kTrafficEnergy * traffic) / kPowerFlops;
  double memory = memory_bytes(r);
  double compute = 0, fix_up = 0;
  if (tile.deep > 0) {
    // Small tiles' blocks are two to a multiprocessor, and then half as fast.
    const std::int64_t blocks = tiles * tile.deep, slots = static_cast<std::int64_t>(kMultiprocessors);
    const std::int64_t room = tile.rows * tile.cols <= 64 * 128 ? 2 : 1;
    const double waves = real(ceil_div(blocks, slots * room));
    const double together = real(std::min(room, ceil_div(blocks, slots)));
    compute = waves * (together * real(ceil_div(slabs, tile.deep)) * slab + epilogue);
    fix_up = kExchangeLatency + waves * part * (tile.deep - 1) / tile.deep / kExchangeBandwidth;
  } else if (schedule != Schedule::stream_k) {
    const double start = schedule == Schedule::block ? kBlockStart : 0;
    compute = real(ceil_div(tiles, workers)) * (real(slabs) * slab + epilogue + start);
  } else {
    const std::int64_t whole = whole_tiles(tiles, workers), cut = tiles - whole;
    compute = real(whole / workers) * (real(slabs) * slab + epilogue);
    if (cut > 0) {
      const int sharers = sharers_of(cut * slabs, slabs, workers);
      compute += real(cut * slabs) / sharers * slab;
      if (whole == 0 && sharers % cut == 0) {
        compute += real(cut) / sharers * epilogue;
        if (sharers > cut) fix_up = kFixUpLatency + 2 * part / kFixUpBandwidth;
      } else {
        compute += 2 * epilogue;
        fix_up = kFixUpLatency + real(ceil_div(sharers, cut)) * part / kFixUpBandwidth;
        // Workers are at the same depth, and share what they read, where as many of them have whole tiles
        // between them.
        const auto together = real(std::gcd(cut, static_cast<std::int64_t>(sharers)));
        const double strips = (1.0 * tile.rows * tile.cluster_down + 1.0 * tile.cols * tile.cluster_across) *
                              std::ceil(std::sqrt(together)) * real(cut) / together;
        memory = std::max(memory, strips * real(r.extent.depth) * 2);
      }
    }
  }
  if (r.row_sums) fix_up += kRowSums;
  return kLaunch + (r.direction == Direction::dw ? kGradientLaunch : 0) + fix_up +
         bound(kSharpness, compute, power, memory / kMemoryBandwidth);
}

}  // namespace

std::string describe(const Selection& s) {
  const TileShape& tile = kTiles[s.tile];
  const std::string groups = tile.pingpong()
                                 ? "groups taking turns"
                                 : fmt::format("{} groups on one", tile.groups_down * tile.groups_across);
  const std::string cluster = tile.deep > 0 ? fmt::format(", {} blocks share the depth", tile.deep)
                              : tile.cluster() > 1
                                  ? fmt::format(", clusters of {}×{}", tile.cluster_down, tile.cluster_across)
                                  : "";
  return fmt::format("{}×{} tiles, {}{}, {} workers", tile.rows, tile.cols, groups, cluster, s.workers);
}

std::vector<Selection> selections(const Request& r, Schedule schedule, const DeviceInfo& device) {
  std::vector<Selection> list;
  for (int index = 0; index < kTileCount; ++index) {
    if (!offers(r.direction, r.dtype, r.activation, index, schedule)) continue;
    const TileShape& tile = kTiles[index];
    const std::int64_t row_tiles = ceil_div(r.extent.rows, tile.rows * tile.cluster_down);
    const std::int64_t tiles = row_tiles * ceil_div(r.extent.cols, tile.cols * tile.cluster_across);
    const int most = std::max(device.gpu.multiprocessors / tile.cluster(), 1);
    const auto add = [&](std::int64_t workers) {
      Selection s;
      s.tile = index;
      s.workers = static_cast<int>(workers);
      // Narrow rasters keep the rows of a large product in the cache while its columns pass.
      s.raster = r.direction != Direction::dw && r.extent.rows >= 16384 ? 4 : 16;
      s.seconds = seconds_of(r, index, schedule, tiles, s.workers) *
                  (kMultiprocessors / std::max(device.gpu.multiprocessors, 1));
      if (schedule == Schedule::block)
        s.workers = static_cast<int>(std::min(std::max<std::int64_t>(tiles, 1), kMostBlocks));
      if (schedule == Schedule::stream_k && tile.deep == 0) {
        s.partial_bytes = static_cast<std::size_t>(s.workers) *
                          static_cast<std::size_t>(tile.cluster() * tile.rows * tile.cols) * 4;
      }
      if (!measured_table().empty()) {
        const auto known = measured_table().find(r, kernel_name(schedule, tile), s.workers);
        if (known) s.seconds = *known;
      }
      list.push_back(s);
    };
    if (tile.deep > 0) {
      if (tiles * tile.deep < kMostBlocks) add(std::max<std::int64_t>(tiles, 1));
    } else if (schedule != Schedule::stream_k || tiles == 0) {
      add(std::clamp<std::int64_t>(tiles, 1, most));
    } else if (2 * most * ceil_div(r.extent.depth, kSlab) <= std::numeric_limits<int>::max()) {
      add(most);
      // As many for each tile: nobody has parts of two tiles.
      if (tiles < most && most % tiles != 0) add(most / tiles * tiles);
    }
  }
  return list;
}

Selection select(const Request& r, Schedule schedule, const DeviceInfo& device) {
  int only = -1;
  if (r.batch_invariant) {
    Request typical = r;
    typical.batch_invariant = false;
    typical.extent.rows = 1024;
    only = select(typical, schedule, device).tile;
  }
  Selection best;
  for (const Selection& s : selections(r, schedule, device)) {
    if (r.batch_invariant && s.tile != only) continue;
    if (best.tile < 0 || s.seconds < best.seconds) best = s;
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
  if (const auto known = measured_table().find(r, "cublaslt:-1", 0)) return *known;
  // By direction: until it has begun and ended, and what it reaches; then a depth that must be cut, what its
  // epilogues add, what its second proposals save where cublaslt.cpp takes them; a bias gradient is a pass of
  // its own over dout.
  constexpr double kStart[] = {6.15e-6, 6.1e-6, 5.2e-6}, kFlops[] = {762e12, 803e12, 754e12};
  constexpr double kCut = 0.27e-6, kBandwidth = 2.55e12, kLibrarySharpness = 2.6;
  constexpr double kFusedActivation = 0.3, kBetterProposal = 0.96, kColumnSumsBandwidth = 3.5e12;
  const int direction = static_cast<int>(r.direction);
  const auto [rows, cols, depth] = r.extent;
  const double tiles = real(std::max<std::int64_t>(ceil_div(rows, 128) * ceil_div(cols, 128), 1));
  const double flops = 2 * real(rows) * real(cols) * real(depth);
  const double element = real(static_cast<std::int64_t>(size_of(r.dtype)));
  const double sums = r.row_sums ? kRowSums + real(rows) * real(depth) * element / kColumnSumsBandwidth : 0;
  const bool better = r.direction == Direction::dx && rows >= 16384 && depth <= 8192;
  const double compute = flops / kFlops[direction] * (better ? kBetterProposal : 1) *
                         (r.activation == Activation::none ? 1 : 1 + kFusedActivation);
  return kStart[direction] + sums + kCut * std::sqrt(std::max(kMultiprocessors / tiles - 1, 0.0)) +
         bound(kLibrarySharpness, compute, memory_bytes(r) / kBandwidth);
}

}  // namespace warpwright::ops::matmul
