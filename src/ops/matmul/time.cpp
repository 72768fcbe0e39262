#include "ops/matmul/time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "roofline/shares.hpp"

namespace warpwright::ops::matmul {
namespace {

// The fraction by which a copied box costs more if the matrix's rows have this many 16-bit elements
// (costs.hpp).
struct Straddling {
  double lines, sectors;
  constexpr double operator()(std::int64_t elements) const {
    return elements % 16 != 0 ? sectors : elements % 64 != 0 ? lines : 0;
  }
};

// Bytes of a block's shared memory for slabs: if it holds nothing else, and if it also receives the sums of
// other blocks.
constexpr std::int64_t kRing = 192 << 10, kDeepRing = 80 << 10;

double real(std::int64_t n) {
  return static_cast<double>(n);
}

// The largest of several bounds, in seconds, and a little more if others come close: two bounds overlap only
// in part. The p-norm with p = sharpness.
template <class... Bounds>
double bound(double sharpness, Bounds... seconds) {
  const double most = std::max({seconds...});
  if (most == 0) return 0;  // there is nothing to do
  return most * std::pow((std::pow(seconds / most, sharpness) + ...), 1 / sharpness);
}

// Seconds of multiplications that take `seconds` at full clock (Costs::throttle).
double throttled(double seconds, double throttle, double throttle_seconds) {
  return seconds * (1 + throttle * seconds / (seconds + throttle_seconds));
}

bool has_fp32_result(const Request& r) {
  return r.direction == Direction::dw || r.finish == Finish::widened;
}

// The bytes that a product moves at least between device memory and the chip. A written byte counts as
// several read ones.
template <class AnyCosts>
double memory_bytes(const Request& r, const AnyCosts& c) {
  const auto [rows, cols, depth] = r.extent;
  const auto element = static_cast<std::int64_t>(size_of(r.dtype));
  const std::int64_t result = has_fp32_result(r) ? 4 : element;
  const Straddling more{c.straddling_written_lines, c.straddling_written_sectors};
  const double written = c.written[has_fp32_result(r) ? 1 : 0] * (1 + more(cols * result / 2));
  return (real(rows) * real(depth) + real(depth) * real(cols)) * real(element) +
         real(rows) * real(cols) * real(result) * (written + (r.adds ? 1 : 0) + (r.extra ? 1 : 0));
}

// The time of one of our kernels. The constructor computes the parts of a slab's time and of an epilogue.
class KernelTime {
 public:
  KernelTime(const Request& request, int index, const Costs& costs)
      : r_(request),
        c_(costs),
        tile_(kTiles[index].shape),
        cost_(costs.tiles[static_cast<std::size_t>(index)]),
        area_(1.0 * tile_.rows * tile_.cols) {
    const auto [rows, cols, depth] = r_.extent;
    const bool gradient = r_.direction == Direction::dw;
    const double a = 1.0 * tile_.rows / tile_.cluster_across, b = 1.0 * tile_.cols / tile_.cluster_down;
    const std::int64_t a_row = gradient ? rows : depth;  // elements of a row in memory
    const std::int64_t b_row = r_.direction == Direction::forward ? depth : cols;
    const Straddling copies{c_.straddling_lines, c_.straddling_sectors};
    const Straddling traffic{c_.straddling_traffic_lines, c_.straddling_traffic};
    const auto boxes = [&](const Straddling& more) { return a * (1 + more(a_row)) + b * (1 + more(b_row)); };
    products_ = cost_.slab * c_.transposed[static_cast<int>(r_.direction)] * 2 * area_ * kSlab /
                c_.multiprocessor_flops * (r_.row_sums ? 1 + cost_.row_sums : 1);
    const bool clusters = tile_.cluster() > 1 || tile_.deep > 0;
    cache_bandwidth_ = clusters ? c_.cache_bandwidth : c_.blocks_cache_bandwidth;
    if (r_.in_step) {
      cache_bandwidth_ = c_.step_cache_bandwidth;
      products_ *= cost_.in_step;
      const std::int64_t stage = (tile_.rows + ceil_div(tile_.cols, 64) * 64) * 2 * kSlab;
      ahead_ = real((tile_.deep > 0 ? kDeepRing : kRing) / stage);
    }
    x_copies_ = a * (1 + copies(a_row)) * c_.row_copy;
    x_traffic_ = a * (1 + traffic(a_row)) * 2 * kSlab;
    copies_ = boxes(copies) * c_.row_copy;
    traffic_ = boxes(traffic) * 2 * kSlab;
    epilogue_ = has_fp32_result(r_) ? cost_.epilogue32 : cost_.epilogue16;
    if (r_.finish != Finish::plain && r_.extra) epilogue_ += c_.added_matrix * area_;
    if (r_.activation != Activation::none) {
      const bool derivative = r_.direction == Direction::dx;
      const double activation = (derivative ? c_.derivative : c_.activation) * area_;
      epilogue_ += activation;
      shown_activation_ = activation * (derivative ? c_.shown_derivative : c_.shown_activation);
    }
  }

  // Seconds of a slab while this many multiprocessors are busy, each with this many blocks. weights_there:
  // the weights' part is in shared memory already, so only x is copied.
  double slab(double multiprocessors, double blocks = 1, bool weights_there = false) const {
    const double share = multiprocessors / c_.multiprocessors;
    return blocks * bound(c_.slab_sharpness, products_ * (1 + c_.crowding * share),
                          weights_there ? x_copies_ : copies_,
                          multiprocessors * (weights_there ? x_traffic_ : traffic_) / cache_bandwidth_);
  }
  double epilogue() const { return epilogue_; }
  double part() const { return 4 * area_; }  // bytes of a tile's sums

  // Seconds of `tiles` tiles, `at_once` of them in each wave.
  //   blocks_of_tile   blocks that work on one tile
  //   slabs            slabs of each block
  //   room             blocks that a multiprocessor can hold
  //   start            seconds that each wave takes to begin
  double waves(std::int64_t tiles, std::int64_t at_once, double blocks_of_tile, double slabs, int room,
               double start) const {
    const std::int64_t full = tiles / at_once, rest = tiles % at_once, count = full + (rest > 0 ? 1 : 0);
    const auto wave = [&](std::int64_t n, double ahead) {
      const double blocks = real(n) * blocks_of_tile;
      // If few multiprocessors have two blocks, their second block takes less time than the first, because
      // few compete for the data that they wait for.
      const double more = std::max(blocks / c_.multiprocessors - 1, 0.0);
      const double together = std::min(1 + std::sqrt(more), 1.0 * room);
      return ahead * slab(blocks / together, together, true) +
             (slabs - ahead) * slab(blocks / together, together);
    };
    const double ahead = std::min(ahead_, slabs);
    const double whole = full > 0 ? wave(at_once, 0) : 0;
    const double hidden = full > 0 ? whole - wave(at_once, ahead) : 0;  // time that the first wave saves
    // With pingpong, the other group's multiplications hide a group's epilogue. A part of the activation
    // remains, because both groups share the issue slots.
    const double shown = tile_.pingpong() ? std::max(epilogue_ - whole, 0.0) / 2 + shown_activation_
                                          : c_.shown_epilogue * epilogue_;
    return real(full) * whole - hidden + (rest > 0 ? wave(rest, full > 0 ? 0 : ahead) : 0) +
           real(count) * start + (count > 0 ? epilogue_ + real(count - 1) * shown : 0);
  }

 private:
  const Request& r_;
  const Costs& c_;
  const TileShape& tile_;
  const TileCosts& cost_;
  double area_, products_, copies_, traffic_, cache_bandwidth_, epilogue_, shown_activation_ = 0;
  double x_copies_, x_traffic_, ahead_ = 0;  // ahead_: slabs whose weights arrive before x is complete
};

// A kernel that walks over a product's tiles.
struct Walk {
  const Request& r;
  const Costs& c;
  const TileShape& tile;
  const KernelTime& time;
  std::int64_t tiles, workers;
  std::int64_t slabs = ceil_div(r.extent.depth, kSlab);  // of a tile
  std::int64_t multiprocessors = static_cast<std::int64_t>(c.multiprocessors);
};

// The schedule's part of a kernel's time.
struct Parts {
  double compute = 0;  // seconds of the tiles
  double fix_up = 0;   // seconds to combine the sums of tiles whose depth is cut
  double memory = 0;   // bytes that the order of the tiles moves between device memory and the chip
};

// The blocks of a cluster share the depth of each tile.
Parts parts_of_split(const Walk& w) {
  const int deep = w.tile.deep;
  // A multiprocessor holds two blocks of a small tile, each at half the speed.
  const int room = w.tile.rows * w.tile.cols <= 64 * 128 ? 2 : 1;
  const std::int64_t at_once = w.multiprocessors * room / deep;
  Parts parts;
  parts.compute = w.time.waves(w.tiles, at_once, deep, real(ceil_div(w.slabs, deep)), room,
                               w.r.in_step ? w.c.step_cluster_start : w.c.cluster_start);
  parts.fix_up = w.c.exchange_latency + real(ceil_div(w.tiles, at_once)) * w.time.part() * (deep - 1) / deep /
                                            w.c.exchange_bandwidth;
  return parts;
}

Parts parts_of_block(const Walk& w) {
  return {.compute = w.time.waves(w.tiles, w.multiprocessors, 1, real(w.slabs), 1, w.c.block_start)};
}

Parts parts_of_persistent(const Walk& w) {
  return {.compute = w.time.waves(w.tiles, w.workers, w.tile.cluster(), real(w.slabs), 1, 0)};
}

Parts parts_of_stream_k(const Walk& w) {
  const std::int64_t whole = roofline::whole_tiles(w.tiles, w.workers), cut = w.tiles - whole;
  const int cluster = w.tile.cluster();
  Parts parts;
  parts.compute = w.time.waves(whole, w.workers, cluster, real(w.slabs), 1, 0);
  if (cut == 0) return parts;
  const std::int64_t sharers = roofline::sharers_of(cut * w.slabs, w.slabs, w.workers);
  parts.compute += real(cut * w.slabs) / real(sharers) * w.time.slab(real(sharers * cluster));
  if (whole == 0 && sharers % cut == 0) {
    parts.compute += real(cut) / real(sharers) * w.time.epilogue();
    if (sharers > cut) {
      const double sharers_of_tile = real(sharers) / real(cut);
      parts.fix_up =
          w.c.fix_up_latency + w.c.fix_up_sharer * sharers_of_tile + 2 * w.time.part() / w.c.fix_up_bandwidth;
    }
    return parts;
  }
  parts.compute += 2 * w.time.epilogue();
  parts.fix_up = w.c.fix_up_latency + real(ceil_div(sharers, cut)) * w.time.part() / w.c.fix_up_bandwidth;
  // The workers form gcd(cut, sharers) sets, each of which has whole tiles between its workers. Workers at
  // the same place in their sets are at the same depth, so they share what they read.
  const auto together = real(std::gcd(cut, sharers));
  const double strips =
      (1.0 * w.tile.rows * w.tile.cluster_down + 1.0 * w.tile.cols * w.tile.cluster_across) *
      std::sqrt(together) * real(cut) / together;
  parts.memory = strips * real(w.r.extent.depth) * 2;
  return parts;
}

Parts parts_of(Schedule schedule, const Walk& walk) {
  if (walk.tile.deep > 0) return parts_of_split(walk);
  switch (schedule) {
    case Schedule::block:
      return parts_of_block(walk);
    case Schedule::persistent:
      return parts_of_persistent(walk);
    default:
      return parts_of_stream_k(walk);
  }
}

double launch_seconds(const Request& r, const TileShape& tile, const Costs& c) {
  return c.launch + (r.direction == Direction::dw ? c.gradient_launch : 0) +
         (tile.cluster() == 1 ? 0
          : r.in_step         ? c.step_pair_launch
                              : c.pair_launch);
}

}  // namespace

double seconds_of(const Request& r, Schedule schedule, int index, int workers, const Costs& c) {
  const TileShape& tile = kTiles[index].shape;
  const std::int64_t tiles = tiles_of(r.extent, tile);
  const KernelTime time(r, index, c);
  Parts parts = parts_of(schedule, {r, c, tile, time, tiles, workers});
  if (r.row_sums) parts.fix_up += c.row_sums;
  if (r.in_step && index == tile_of({64, 64, 1, 1, 1, 1})) {
    const double share = real(std::min<std::int64_t>(tiles, workers)) / c.multiprocessors;
    parts.fix_up += c.step_crowded_start * std::max(2 * share - 1, 0.0);
  }
  return launch_seconds(r, tile, c) + parts.fix_up +
         bound(c.sharpness, throttled(parts.compute, c.throttle, c.throttle_seconds),
               std::max(memory_bytes(r, c), parts.memory) / c.memory_bandwidth);
}

namespace {

// The time of one of cuBLASLt's kernels.
class LibraryTime {
 public:
  LibraryTime(const Request& request, const LibraryKernel& kernel, const Costs& costs)
      : r_(request),
        k_(kernel),
        c_(costs.library),
        multiprocessors_(costs.multiprocessors),
        throttle_seconds_(costs.throttle_seconds),
        style_(static_cast<std::size_t>(std::clamp(kernel.option / 2, 0, 3))),
        area_(1.0 * kernel.rows * kernel.cols) {}

  double seconds() const {
    const auto direction = static_cast<std::size_t>(r_.direction);
    const auto [rows, cols, depth] = r_.extent;
    const int cluster = k_.cluster_down * k_.cluster_across;
    const std::int64_t tiles = ceil_div(rows, k_.rows * k_.cluster_down) *
                               ceil_div(cols, k_.cols * k_.cluster_across) * cluster * k_.parts;
    // A large cluster needs its room within one group of multiprocessors. The multiprocessors that a group
    // has beyond a multiple of the cluster's size stay idle.
    const std::int64_t at_once = cluster >= 8 ? static_cast<std::int64_t>(multiprocessors_) / 8 * 8
                                              : static_cast<std::int64_t>(multiprocessors_);
    const std::int64_t waves = ceil_div(tiles, at_once), rest = tiles - (waves - 1) * at_once;
    const double slabs = real(ceil_div(ceil_div(depth, kSlab), k_.parts));
    // A block alternates between two tiles. The last of an odd number of tiles has no other tile to fill the
    // waits for its multiplications.
    const double alone = waves % 2 == 1 ? c_.alone[style_] : 0;
    const bool activates = r_.activation != Activation::none;
    const double epilogue = (c_.epilogue[style_] + c_.epilogue_area[style_] * area_ +
                             (activates ? c_.activation[direction] * area_ : 0)) *
                            (has_fp32_result(r_) ? c_.epilogue32 : 1);
    const double products = (real(waves - 1) * slab(real(at_once)) + (1 + alone) * slab(real(rest))) * slabs;
    const double compute = throttled(products, c_.throttle, throttle_seconds_) +
                           epilogue * (1 + real(waves - 1) * std::min(c_.shown[style_], 1.0));
    const double parts =
        k_.parts > 1 ? c_.cut + real(k_.parts) * real(rows) * real(cols) * 4 / c_.cut_bandwidth : 0;
    return c_.start[direction] + (activates ? c_.activation_start[direction] : 0) +
           (cluster >= 8   ? c_.cluster8
            : cluster >= 4 ? c_.cluster4
                           : 0) +
           parts +
           bound(c_.sharpness, compute * (k_.option % 2 == 1 ? c_.option : 1),
                 memory_bytes(r_, c_) / c_.memory_bandwidth[direction]);
  }

 private:
  double slab(double blocks) const {
    const bool gradient = r_.direction == Direction::dw;
    const auto direction = static_cast<std::size_t>(r_.direction);
    const Straddling more{c_.straddling_lines, c_.straddling_sectors[direction]};
    const double a =
        1.0 * k_.rows / k_.cluster_across * (1 + more(gradient ? r_.extent.rows : r_.extent.depth));
    const double b = 1.0 * k_.cols / k_.cluster_down *
                     (1 + more(r_.direction == Direction::forward ? r_.extent.depth : r_.extent.cols));
    const std::size_t kind = 4 * direction + style_;
    const double products =
        (c_.area[kind] * area_ + c_.rows[kind] * k_.rows + c_.cols[kind] * k_.cols + c_.slab[kind]) *
        (1 + c_.crowding * blocks / multiprocessors_);
    const double ratio = 1.0 * std::max(k_.rows, k_.cols) / std::min(k_.rows, k_.cols);
    const double narrow = 1 + c_.narrow * std::max(std::log2(ratio) - 2, 0.0);
    const double bandwidth = c_.cache_bandwidth[k_.cluster_down * k_.cluster_across > 1 ? 1 : 0];
    return narrow * bound(c_.slab_sharpness, products, (a + b) * c_.row_copy,
                          (a + b) * 2 * kSlab * blocks / bandwidth);
  }

  const Request& r_;
  const LibraryKernel& k_;
  const LibraryCosts& c_;
  double multiprocessors_, throttle_seconds_;
  std::size_t style_;
  double area_;
};

// Seconds for dbias: a pass of our own kernel over dout.
double column_sums_seconds(const Request& r, const Costs& costs) {
  const double element = real(static_cast<std::int64_t>(size_of(r.dtype)));
  return r.row_sums ? costs.row_sums + real(r.extent.rows) * real(r.extent.depth) * element / kPassBandwidth
                    : 0;
}

}  // namespace

double seconds_of(const Request& r, const LibraryKernel& kernel, const Costs& costs) {
  return LibraryTime(r, kernel, costs).seconds() + column_sums_seconds(r, costs);
}

std::string describe(const LibraryKernel& k) {
  std::string text = fmt::format("{}x{}", k.rows, k.cols);
  if (k.cluster_down * k.cluster_across > 1) {
    text += fmt::format(", clusters {}x{}", k.cluster_down, k.cluster_across);
  }
  if (k.parts > 1) text += fmt::format(", depth in {}", k.parts);
  if (k.option != 0) text += fmt::format(", option {}", k.option);
  return text;
}

Request request_of(const MatmulForwardProblem& p) {
  const Finish finish = p.widened                ? Finish::widened
                        : p.residual || p.scaled ? Finish::combined
                                                 : Finish::plain;
  // A model counts rows on the device if it captures its step once for many batches, so rows_counted implies
  // in_step.
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

const Costs& costs_of_h200() {
  static constexpr Costs kCosts = {
#include "ops/matmul/costs_h200.inc"
  };
  return kCosts;
}

}  // namespace warpwright::ops::matmul
