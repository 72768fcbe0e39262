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

// What copying a box costs more where rows of so many elements lie in memory: a box's row is 128 bytes, one
// of the caches' lines where it begins with one, else parts of two; and parts of five sectors of 32 bytes
// where it begins within one.
struct Straddling {
  double lines, sectors;
  constexpr double operator()(std::int64_t elements) const {
    return elements % 16 != 0 ? sectors : elements % 64 != 0 ? lines : 0;
  }
};

// Of an H200, fitted to measured times of every kernel on products of its models' shapes and random ones
// (docs/gemm.md). Seconds, bytes, bytes a second.
constexpr double kLaunch = 2.29e-6;  // until the first slab has come, and from the last one to the end
constexpr double kGradientLaunch = 0.08e-6;  // more of it where fp32 sums go out
constexpr double kPairLaunch = 0.95e-6;      // and where blocks share what they copy
constexpr double kBlockStart = 0.16e-6;      // of each block of a tile
constexpr double kClusterStart = 0.63e-6;    // and where a cluster shares the tile's depth
constexpr double kShownEpilogue =
    0.93;  // of an epilogue between two tiles, what the next one's slabs do not hide
constexpr double kCrowding = 0.131;  // that products take longer when all multiprocessors are at them
constexpr double kCacheBandwidth = 10.99e12;     // of the second-level cache, to clusters
constexpr double kBlocksCacheBandwidth = 13e12;  // and to blocks by themselves
constexpr double kMemoryBandwidth = 4.83e12;
constexpr double kRowCopy = 0.660e-9;  // of a row of 128 bytes, by the copy engine
constexpr Straddling kStraddlingCopies = {0.67, 1.83}, kStraddlingTraffic = {0.52, 1.14};
constexpr double kFixUpLatency = 2.89e-6;     // until other workers' sums can be read
constexpr double kFixUpBandwidth = 35.9e9;    // of partial sums, of one multiprocessor
constexpr double kExchangeLatency = 0.12e-6;  // between the blocks of a cluster
constexpr double kExchangeBandwidth = 11.3e9;
constexpr double kTransposed[] = {1, 1.026, 0.986};  // products by direction
constexpr double kActivation = 0.072e-9;             // that an element's activation adds to the epilogue
constexpr double kDerivative = 0.095e-9;             // and that its derivative does
constexpr double kAddedMatrix = 0.059e-9;  // and that one of a residual does, by docs/gemm.md's clocks
constexpr double kShownActivation = 0.67, kShownDerivative = 0.63;  // of them, where groups take turns
constexpr double kSharpness = 4.00, kSlabSharpness = 7.59;
// In a model's step, fitted to whole forwards with one product's kernel changed. Clusters begin when there is
// room for all of their blocks; x and the weights pass through the second-level cache together with what
// other kernels leave there; and where most multiprocessors have a block of 64×64, x reaches them later.
constexpr double kStepPairLaunch = 1.19e-6, kStepClusterStart = 0.95e-6, kStepCacheBandwidth = 12.64e12;
constexpr double kStepCrowdedStart = 1.5e-6;
constexpr double kRowSums = 3e-6;                // what is left of a bias gradient when its product is done
constexpr double kMultiprocessors = 132;         // that the sums above are of
constexpr double kMultiprocessorFlops = 6.2e12;  // the scale of TileCost::slab, no more

constexpr std::int64_t kSlab = 64;
constexpr std::int64_t kMostBlocks = 1 << 24;

// Room for slabs in a block's shared memory, with and without sums of other blocks in it.
constexpr std::int64_t kRing = 192 << 10, kDeepRing = 80 << 10;

// slab: seconds of one slab on a GPU that does nothing else, times the multiprocessor's rate over its FLOPs.
// epilogue: seconds, with 16-bit results and with fp32 ones; of the latter those of k128x192 and k64x64Deep4
// lie between their neighbours' and are not fitted.
struct TileCost {
  double slab, epilogue16, epilogue32;
  double row_sums;     // that slabs take longer where dout's columns are summed as they pass
  double in_step = 1;  // what they take in a model's step, of that
};
constexpr TileCost kCosts[kTileCount] = {
    {0.857, 2.64e-6, 6.70e-6, 0.03},        // k128x256
    {0.920, 1.78e-6, 4.42e-6, 0.20},        // k128x128
    {0.894, 2.63e-6, 5.50e-6, 0.06},        // k128x192
    {0.904, 2.56e-6, 2.00e-6, 0.06},        // k128x192Alone
    {0.862, 1.81e-6, 3.87e-6, 0.10},        // k128x128Team
    {1.032, 1.20e-6, 2.20e-6, 0.00, 0.87},  // k64x128
    {0.905, 1.00e-6, 6.19e-6, 0.11},        // k128x192Team
    {0.863, 2.27e-6, 2.00e-6, 0.11},        // k128x192TeamAlone
    {0.978, 1.00e-6, 6.25e-6, 0.05},        // k128x160
    {0.908, 2.85e-6, 6.15e-6, 0.05},        // k128x160Down
    {2.267, 0.38e-6, 2.00e-6, 0.10},        // k64x64Deep8
    {2.052, 0.28e-6, 0.50e-6, 0.10},        // k64x64Deep4
    {2.277, 0.40e-6, 2.00e-6, 0.10},        // k64x64Deep2
    {0.660, 0.19e-6, 0.91e-6, 0.10},        // k128x128Deep4
    {1.522, 0.18e-6, 0.89e-6, 0.10},        // k128x128Deep3
    {0.985, 0.18e-6, 0.92e-6, 0.10},        // k128x128Deep2
    {1.975, 0.11e-6, 0.40e-6, 0.10},        // k64x128Deep4
    {1.384, 0.81e-6, 1.09e-6, 0.10},        // k64x64
    {1.055, 1.13e-6, 2.63e-6, 0.10, 0.87},  // k64x128Turns
    {1.101, 1.04e-6, 1.52e-6, 0.00},        // k64x128Pair
    {1.088, 1.05e-6, 3.00e-6, 0.10, 1.10},  // k64x96Pair
    {0.943, 0.99e-6, 2.00e-6, 0.10},        // k128x96Pair
    {0.991, 1.33e-6, 3.10e-6, 0.05},        // k128x160TeamPair
    {0.860, 4.00e-6, 4.00e-6, 0.10},        // k256x160Pair
    {0.893, 1.50e-6, 5.56e-6, 0.10},        // k192x128Pair
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
  if (most == 0) return 0;  // nothing is to be done
  return most * std::pow((std::pow(seconds / most, sharpness) + ...), 1 / sharpness);
}

bool has_fp32_result(const Request& r) {
  return r.direction == Direction::dw || r.finish == Finish::widened;
}

// Bytes that pass between device memory and the chip at least.
double memory_bytes(const Request& r) {
  const auto [rows, cols, depth] = r.extent;
  const double element = real(static_cast<std::int64_t>(size_of(r.dtype)));
  const double result = has_fp32_result(r) ? 4 : element;
  return (real(rows) * real(depth) + real(depth) * real(cols)) * element +
         real(rows) * real(cols) * result * ((r.adds ? 2 : 1) + (r.extra ? 1 : 0));
}

// One kernel's time, block by block.
class KernelTime {
 public:
  KernelTime(const Request& request, int index)
      : r_(request), tile_(kTiles[index]), cost_(kCosts[index]), area_(1.0 * tile_.rows * tile_.cols) {
    const auto [rows, cols, depth] = r_.extent;
    const bool gradient = r_.direction == Direction::dw;
    const double a = 1.0 * tile_.rows / tile_.cluster_across, b = 1.0 * tile_.cols / tile_.cluster_down;
    const std::int64_t a_row = gradient ? rows : depth;  // elements
    const std::int64_t b_row = r_.direction == Direction::forward ? depth : cols;
    const auto boxes = [&](const Straddling& more) { return a * (1 + more(a_row)) + b * (1 + more(b_row)); };
    products_ = cost_.slab * kTransposed[static_cast<int>(r_.direction)] * 2 * area_ * kSlab /
                kMultiprocessorFlops * (r_.row_sums ? 1 + cost_.row_sums : 1);
    const bool clusters = tile_.cluster() > 1 || tile_.deep > 0;
    cache_bandwidth_ = clusters ? kCacheBandwidth : kBlocksCacheBandwidth;
    if (r_.in_step) {
      cache_bandwidth_ = kStepCacheBandwidth;
      products_ *= cost_.in_step;
      const std::int64_t stage = (tile_.rows + ceil_div(tile_.cols, 64) * 64) * 2 * kSlab;
      ahead_ = real((tile_.deep > 0 ? kDeepRing : kRing) / stage);
    }
    x_copies_ = a * (1 + kStraddlingCopies(a_row)) * kRowCopy;
    x_traffic_ = a * (1 + kStraddlingTraffic(a_row)) * 2 * kSlab;
    copies_ = boxes(kStraddlingCopies) * kRowCopy;
    traffic_ = boxes(kStraddlingTraffic) * 2 * kSlab;
    epilogue_ = has_fp32_result(r_) ? cost_.epilogue32 : cost_.epilogue16;
    if (r_.finish != Finish::plain && r_.extra) epilogue_ += kAddedMatrix * area_;
    if (r_.activation != Activation::none) {
      const bool derivative = r_.direction == Direction::dx;
      const double activation = (derivative ? kDerivative : kActivation) * area_;
      epilogue_ += activation;
      shown_activation_ = activation * (derivative ? kShownDerivative : kShownActivation);
    }
  }

  // Of a slab while so many multiprocessors are at theirs, each with so many blocks; weights_there: of x
  // alone something is to be copied.
  double slab(double multiprocessors, double blocks = 1, bool weights_there = false) const {
    const double share = multiprocessors / kMultiprocessors;
    return blocks * bound(kSlabSharpness, products_ * (1 + kCrowding * share),
                          weights_there ? x_copies_ : copies_,
                          multiprocessors * (weights_there ? x_traffic_ : traffic_) / cache_bandwidth_);
  }
  double epilogue() const { return epilogue_; }
  double part() const { return 4 * area_; }  // bytes of a tile's sums

  // Tiles one after another, and so many at once; starts: of every block.
  double waves(std::int64_t tiles, std::int64_t at_once, double blocks_of_tile, double slabs, int room,
               double start) const {
    const std::int64_t full = tiles / at_once, rest = tiles % at_once, count = full + (rest > 0 ? 1 : 0);
    const auto wave = [&](std::int64_t n, double ahead) {
      const double blocks = real(n) * blocks_of_tile;
      // Of few that have two blocks the second one takes less than the first: what they wait for is theirs.
      const double more = std::max(blocks / kMultiprocessors - 1, 0.0);
      const double together = std::min(1 + std::sqrt(more), 1.0 * room);
      return ahead * slab(blocks / together, together, true) +
             (slabs - ahead) * slab(blocks / together, together);
    };
    const double ahead = std::min(ahead_, slabs);
    const double whole = full > 0 ? wave(at_once, 0) : 0;
    const double hidden = full > 0 ? whole - wave(at_once, ahead) : 0;  // of the first
    // Of a group whose tile is done the other one's products hide the epilogue, but they share the issue
    // slots.
    const double shown = tile_.pingpong() ? std::max(epilogue_ - whole, 0.0) / 2 + shown_activation_
                                          : kShownEpilogue * epilogue_;
    return real(full) * whole - hidden + (rest > 0 ? wave(rest, full > 0 ? 0 : ahead) : 0) +
           real(count) * start + (count > 0 ? epilogue_ + real(count - 1) * shown : 0);
  }

 private:
  const Request& r_;
  const TileShape& tile_;
  const TileCost& cost_;
  double area_, products_, copies_, traffic_, cache_bandwidth_, epilogue_, shown_activation_ = 0;
  double x_copies_, x_traffic_, ahead_ = 0;  // slabs whose weights are there before x is
};

// One tile shape under one schedule with so many workers.
double seconds_of(const Request& r, int index, Schedule schedule, std::int64_t tiles, int workers) {
  const TileShape& tile = kTiles[index];
  const KernelTime time(r, index);
  const std::int64_t slabs = ceil_div(r.extent.depth, kSlab);
  const auto multiprocessors = static_cast<std::int64_t>(kMultiprocessors);
  double memory = memory_bytes(r);
  double compute = 0, fix_up = 0;
  if (tile.deep > 0) {
    // Small tiles' blocks are two to a multiprocessor, and then half as fast.
    const int room = tile.rows * tile.cols <= 64 * 128 ? 2 : 1;
    const std::int64_t at_once = multiprocessors * room / tile.deep;
    compute = time.waves(tiles, at_once, tile.deep, real(ceil_div(slabs, tile.deep)), room,
                         r.in_step ? kStepClusterStart : kClusterStart);
    fix_up = kExchangeLatency +
             real(ceil_div(tiles, at_once)) * time.part() * (tile.deep - 1) / tile.deep / kExchangeBandwidth;
  } else if (schedule == Schedule::block) {
    compute = time.waves(tiles, multiprocessors, 1, real(slabs), 1, kBlockStart);
  } else if (schedule == Schedule::persistent) {
    compute = time.waves(tiles, workers, tile.cluster(), real(slabs), 1, 0);
  } else {
    const std::int64_t whole = whole_tiles(tiles, workers), cut = tiles - whole;
    compute = time.waves(whole, workers, tile.cluster(), real(slabs), 1, 0);
    if (cut > 0) {
      const int sharers = sharers_of(cut * slabs, slabs, workers);
      compute += real(cut * slabs) / sharers * time.slab(1.0 * sharers * tile.cluster());
      if (whole == 0 && sharers % cut == 0) {
        compute += real(cut) / sharers * time.epilogue();
        if (sharers > cut) fix_up = kFixUpLatency + 2 * time.part() / kFixUpBandwidth;
      } else {
        compute += 2 * time.epilogue();
        fix_up = kFixUpLatency + real(ceil_div(sharers, cut)) * time.part() / kFixUpBandwidth;
        // Workers are at the same depth, and share what they read, where as many of them have whole tiles
        // between them.
        const auto together = real(std::gcd(cut, static_cast<std::int64_t>(sharers)));
        const double strips = (1.0 * tile.rows * tile.cluster_down + 1.0 * tile.cols * tile.cluster_across) *
                              std::sqrt(together) * real(cut) / together;
        memory = std::max(memory, strips * real(r.extent.depth) * 2);
      }
    }
  }
  if (r.row_sums) fix_up += kRowSums;
  if (r.in_step && index == k64x64) {
    const double share = real(std::min<std::int64_t>(tiles, workers)) / kMultiprocessors;
    fix_up += kStepCrowdedStart * std::max(2 * share - 1, 0.0);
  }
  return kLaunch + (r.direction == Direction::dw ? kGradientLaunch : 0) +
         (tile.cluster() == 1 ? 0
          : r.in_step         ? kStepPairLaunch
                              : kPairLaunch) +
         fix_up + bound(kSharpness, compute, memory / kMemoryBandwidth);
}

}  // namespace

std::string describe(const Selection& s) {
  const TileShape& tile = kTiles[s.tile];
  const int groups = tile.groups_down * tile.groups_across;
  const std::string by = tile.pingpong() ? "in turns"
                         : groups == 1   ? "1 group"
                                         : fmt::format("{} groups", groups);
  const std::string cluster = tile.deep > 0 ? fmt::format(", depth in {}", tile.deep)
                              : tile.cluster() > 1
                                  ? fmt::format(", clusters {}x{}", tile.cluster_down, tile.cluster_across)
                                  : "";
  return fmt::format("{}x{}, {}{}, {} workers", tile.rows, tile.cols, by, cluster, s.workers);
}

std::vector<Selection> selections(const Request& r, Schedule schedule, const DeviceInfo& device) {
  std::vector<Selection> list;
  for (int index = 0; index < kTileCount; ++index) {
    if (!offers(r.direction, r.dtype, r.activation, r.finish, index, schedule)) continue;
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
  const Finish finish = p.widened                ? Finish::widened
                        : p.residual || p.scaled ? Finish::combined
                                                 : Finish::plain;
  // Models count rows on the device where a graph of their step is for many batches.
  return {Direction::forward,     extent_of(p), p.dtype, p.activation,      finish,
          p.preact || p.residual, false,        false,   p.batch_invariant, p.rows_counted};
}
Request request_of(const MatmulDxProblem& p) {
  return {Direction::dx,
          extent_of(p),
          p.dtype,
          p.activation,
          p.widened ? Finish::widened : Finish::plain,
          p.activation != Activation::none};
}
Request request_of(const MatmulDwProblem& p) {
  return {Direction::dw, extent_of(p),          p.dtype, Activation::none, Finish::plain,
          false,         p.store == Store::add, p.bias};
}

double library_seconds(const Request& r) {
  if (const auto known = measured_table().find(r, "cublaslt:-1", 0)) return *known;
  // By direction: until it has begun and ended, and what it reaches where the best of its tiles fills all
  // multiprocessors; then tiles that are fewer than those, whose depth is cut, rows of factors that begin
  // within a sector, epilogues; a bias gradient is a pass of its own over dout.
  constexpr double kStart[] = {3.59e-6, 3.32e-6, 2.98e-6}, kFlops[] = {707e12, 747e12, 743e12};
  constexpr double kCut = 5.1e-9, kIdle = 0.256, kFusedActivation = 0.333, kStraddlingFactor = 0.086;
  constexpr double kBandwidth = 2.64e12, kLibrarySharpness = 2.71, kColumnSumsBandwidth = 3.5e12;
  struct Shape {
    std::int64_t rows, cols;
    double slower;
  };
  constexpr Shape kShapes[] = {{128, 256, 1}, {128, 192, 1}, {128, 128, 1}, {64, 128, 1.05}};
  const int direction = static_cast<int>(r.direction);
  const auto [rows, cols, depth] = r.extent;
  const auto up = [](std::int64_t n, std::int64_t multiple) {
    return real(ceil_div(n, multiple) * multiple);
  };
  double filling = std::numeric_limits<double>::infinity();  // times the work that the result itself is
  for (const auto& [tile_rows, tile_cols, slower] : kShapes) {
    const double area = up(rows, tile_rows) * up(cols, tile_cols);
    const double tiles = area / real(tile_rows * tile_cols);
    const double waves = std::ceil(tiles / kMultiprocessors);
    filling = std::min(filling, slower * waves * kMultiprocessors / tiles * area / (real(rows) * real(cols)));
  }
  const int straddling = ((r.direction == Direction::dw ? rows : depth) % 16 != 0) +
                         ((r.direction == Direction::forward ? depth : cols) % 16 != 0);
  const double element = real(static_cast<std::int64_t>(size_of(r.dtype)));
  const double sums = r.row_sums ? kRowSums + real(rows) * real(depth) * element / kColumnSumsBandwidth : 0;
  const double compute = 2 * up(rows, 64) * up(cols, 64) * up(depth, 64) / kFlops[direction] *
                         (r.activation == Activation::none ? 1 : 1 + kFusedActivation) *
                         (1 + kStraddlingFactor * straddling) *
                         (1 + kIdle * std::clamp(filling - 1, 0.0, 1.0));
  const double tiles = std::max(up(rows, 128) * up(cols, 128) / (128 * 128), 1.0);
  return kStart[direction] + sums +
         kCut * std::sqrt(real(depth) * std::max(kMultiprocessors / tiles - 1, 0.0)) +
         bound(kLibrarySharpness, compute, memory_bytes(r) / kBandwidth);
}

}  // namespace warpwright::ops::matmul
