#include "roofline/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"

namespace warpwright::roofline {
namespace {

double real(std::int64_t n) {
  return static_cast<double>(n);
}

// Each busy multiprocessor's share of L2's bandwidth, in bytes per second. If L2's bandwidth is unknown,
// device memory's takes its place.
double share_of_l2(const Machine& machine, Math math, std::int64_t busy) {
  const double l2 = machine.l2_bytes_per_second(math);
  const double share = (l2 > 0 ? l2 : machine.memory_bytes_per_second) / real(busy);
  return std::min(share, machine.l2_port_bytes_per_clock * machine.hz(math));
}

std::int64_t busy_multiprocessors(const Machine& machine, std::int64_t ctas) {
  return std::clamp<std::int64_t>(ctas, 1, machine.multiprocessors);
}

// CTAs that share one multiprocessor.
double neighbours(const Machine& machine, const Options& options, std::int64_t ctas) {
  return real(std::clamp<std::int64_t>(ceil_div(ctas, machine.multiprocessors), 1,
                                       options.blocks_per_multiprocessor));
}

double tile_results(const Options& options) {
  return real(options.tiling.block.m) * real(options.tiling.block.n);
}

}  // namespace

double Product::flops() const {
  return 2 * real(rows) * real(cols) * real(depth);
}

double Product::compulsory_bytes() const {
  const double factors = (real(rows) + real(cols)) * real(depth) * element_bytes(math);
  return factors + (accumulate ? 2 : 1) * real(rows) * real(cols) * out_bytes;
}

Direction direction_named(std::string_view name) {
  for (const Direction direction : kDirections) {
    if (name == name_of(direction)) return direction;
  }
  throw UsageError(fmt::format("'{}' is not a product of a linear layer", name), "--op",
                   "use forward, dx or dw");
}

Product product_of(Direction direction, std::int64_t M, std::int64_t N, std::int64_t K, Math math) {
  switch (direction) {
    case Direction::dx:
      return {M, K, N, math, element_bytes(math), false};
    case Direction::dw:
      return {N, K, M, math, kSumBytes, true};
    default:
      return {M, N, K, math, element_bytes(math), false};
  }
}

std::int64_t slots_of(const Machine& machine, const Options& options) {
  const std::int64_t blocks = machine.multiprocessors * options.blocks_per_multiprocessor;
  return std::max<std::int64_t>(blocks / (options.cluster.m * options.cluster.n), 1);
}

Tiles tiles_of(const Machine& machine, const Product& product, const Options& options) {
  const Mnk& tile = options.tiling.block;
  const Mnk block{tile.m * options.cluster.m, tile.n * options.cluster.n, tile.k};
  Tiles t;
  t.rows = ceil_div(product.rows, block.m);
  t.cols = ceil_div(product.cols, block.n);
  t.iterations = ceil_div(product.depth, block.k);
  constexpr double kMost = 0x1p62;  // so that every count fits into 64 bits
  if (real(t.rows) * real(t.cols) * real(t.iterations) > kMost) {
    throw UsageError(
        fmt::format("{} × {} tiles of {} iterations are too many to count", t.rows, t.cols, t.iterations),
        "--m, --n, --k", "give smaller sides or a larger tile");
  }
  const double padded = real(t.rows * block.m) * real(t.cols * block.n) * real(t.iterations * block.k);
  t.edge = real(product.rows) * real(product.cols) * real(product.depth) / padded;
  const std::int64_t slots = slots_of(machine, options);
  double least = 0;
  for (std::int64_t rows = 1; rows <= std::min(slots, t.rows); ++rows) {
    const std::int64_t cols = std::min(slots / rows, t.cols);
    const double factor_passes =
        real(ceil_div(t.cols, cols)) * real(product.rows) + real(ceil_div(t.rows, rows)) * real(product.cols);
    if (least == 0 || factor_passes < least) {
      least = factor_passes;
      t.group_rows = rows;
      t.group_cols = cols;
    }
  }
  return t;
}

double device_bytes(const Machine& machine, const Product& product, const Options& options) {
  const double e = element_bytes(product.math);
  const double smaller = e * real(std::min(product.rows, product.cols)) * real(product.depth);
  const double compulsory = product.compulsory_bytes();
  if (smaller <= real(machine.l2_bytes) / 2) return compulsory;
  const Tiles t = tiles_of(machine, product, options);
  const double once = e * (real(product.rows) + real(product.cols)) * real(product.depth);
  const double factors = e * real(product.depth) *
                         (real(product.rows) * real(ceil_div(t.cols, t.group_cols)) +
                          real(product.cols) * real(ceil_div(t.rows, t.group_rows)));
  return compulsory - once + factors;
}

std::vector<LevelBound> levels(const Machine& machine, const Product& product, const Options& options) {
  const Math math = product.math;
  const double peak = machine.peak_flops(math);
  const auto bound = [&](Level level, std::string what, double intensity, double bandwidth) {
    LevelBound b{level, std::move(what), intensity, bandwidth, peak, false};
    if (bandwidth > 0) b.attainable = std::min(peak, intensity * bandwidth);
    b.bounds = b.attainable < peak;
    return b;
  };
  const Tiling& tiling = options.tiling;
  const bool wgmma = is_wgmma(machine, tiling.instruction);
  const auto registers = instruction_level(machine, math, tiling.instruction, tiling.warp);
  const auto shared = warp_level(machine, math, tiling);
  const auto block = block_level(machine, math, tiling.block, options.cluster);
  const double per_clock = machine.flops_per_clock(math);
  return {
      bound(Level::instruction,
            wgmma               ? "sums in registers"
            : math == Math::f32 ? "registers → fp32 units"
                                : "registers → tensor core",
            per_clock / registers.bytes_per_clock_without_reuse, machine.register_bytes_per_second(math)),
      bound(Level::warp,
            wgmma ? "shared memory → tensor core, and its filling" : "shared memory, read and filled",
            per_clock / (shared.bytes_per_clock + shared.fill_per_clock),
            machine.shared_bytes_per_second(math)),
      bound(Level::block, "L2 → shared memory", block.intensity, machine.l2_bytes_per_second(math)),
      bound(Level::l2, "device memory → L2, as the tiles run",
            product.flops() / device_bytes(machine, product, options), machine.memory_bytes_per_second),
      bound(Level::device, "device memory, each matrix once", product.intensity(),
            machine.memory_bytes_per_second),
  };
}

Iteration iteration_of(const Machine& machine, const Product& product, const Options& options,
                       std::int64_t ctas) {
  const Math math = product.math;
  const auto shared = warp_level(machine, math, options.tiling);
  const auto block = block_level(machine, math, options.tiling.block, options.cluster);
  Iteration iteration{shared.clocks / machine.hz(math), math == Math::f32 ? "multiply-adds" : "tensor cores"};
  const auto longest = [&](double seconds, std::string_view what) {
    if (seconds > iteration.seconds) iteration = {seconds, what};
  };
  longest(shared.clocks * shared.share() / machine.hz(math), "shared memory");
  longest(block.bytes / share_of_l2(machine, math, busy_multiprocessors(machine, ctas)),
          machine.l2_bytes_per_clock > 0 ? "L2" : "device memory");
  iteration.seconds *= neighbours(machine, options, ctas);
  return iteration;
}

Prediction predict(const Machine& machine, const Product& product, const Options& options, const Split& s) {
  const std::int64_t ctas = std::min(s.ctas, s.slots) * options.cluster.m * options.cluster.n;
  const Iteration iteration = iteration_of(machine, product, options, ctas);
  const double results = (product.accumulate ? 2 : 1) * tile_results(options) * product.out_bytes;
  const double partial_sums = tile_results(options) * kSumBytes;
  // All CTAs store their results at the same time, into L2.
  const double rate = share_of_l2(machine, product.math, busy_multiprocessors(machine, ctas)) /
                      neighbours(machine, options, ctas);
  Prediction p;
  p.split = s;
  p.tiling = options.tiling;
  p.main_loop = real(s.most_iterations) * iteration.seconds;
  const double starts = s.schedule == Schedule::block ? real(s.waves) : 1;
  p.overhead = options.costs.launch + starts * (options.costs.latency + results / rate);
  if (s.most_contributors > 1) {
    p.fix_up = options.costs.hand_over + partial_sums / rate * real(s.most_contributors);
  }
  p.memory_floor = device_bytes(machine, product, options) / machine.memory_bytes_per_second;
  const double on_chip = p.main_loop + p.overhead + p.fix_up;
  const double least = options.costs.launch + options.costs.latency + p.memory_floor;
  p.seconds = std::max(on_chip, least);
  p.bound = least > on_chip ? "device memory" : iteration.bound;
  p.flops_per_second = product.flops() / p.seconds;
  p.share_of_peak = p.flops_per_second / machine.peak_flops(product.math);
  return p;
}

Prediction predict(const Machine& machine, const Product& product, const Options& options,
                   Schedule schedule) {
  const std::int64_t slots = slots_of(machine, options);
  const Work work = tiles_of(machine, product, options).work();
  Prediction best = predict(machine, product, options, split(schedule, work, slots));
  if (schedule != Schedule::stream_k || best.split.shared_tiles == 0) return best;
  // If every tile is cut, fewer CTAs per tile cost iterations and save fix-up. This case has fewer tiles than
  // slots.
  for (std::int64_t ctas = work.tiles; ctas < slots; ++ctas) {
    const Prediction fewer = predict(machine, product, options, split(schedule, work, slots, ctas));
    if (fewer.seconds < best.seconds) best = fewer;
  }
  return best;
}

std::vector<Mnk> candidate_tiles(const Machine& machine, Math math) {
  if (math == Math::f32) return {{128, 128, 32}, {64, 64, 32}};
  const auto k = static_cast<std::int64_t>(element_bytes(math) == 2 ? 32 : 16);
  if (machine.has_wgmma()) {
    return {{128, 256, 2 * k}, {128, 192, 2 * k}, {128, 160, 2 * k}, {128, 128, 2 * k}, {64, 128, 2 * k}};
  }
  return {{128, 256, k}, {256, 128, k}, {128, 128, k}, {128, 64, k}, {64, 128, k}, {64, 64, k}};
}

Prediction predict_best(const Machine& machine, const Product& product, const Options& options,
                        Schedule schedule) {
  std::optional<Prediction> best;
  Options with = options;
  for (const Mnk& tile : candidate_tiles(machine, product.math)) {
    with.tiling = default_tiling(machine, product.math, tile);
    const Prediction p = predict(machine, product, with, schedule);
    if (!best || p.seconds < best->seconds) best = p;
  }
  return *best;
}

std::vector<MapCell> map_of(const Machine& machine, const Product& product, const Options& options,
                            const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols,
                            bool one_tile) {
  std::vector<MapCell> cells;
  for (const std::int64_t r : rows) {
    for (const std::int64_t c : cols) {
      Product p = product;
      p.rows = r;
      p.cols = c;
      Prediction of[3];
      for (const Schedule schedule : kSchedules) {
        of[static_cast<int>(schedule)] =
            one_tile ? predict(machine, p, options, schedule) : predict_best(machine, p, options, schedule);
      }
      MapCell cell{r, c, Schedule::block, 1, 1, of[0]};
      for (const Schedule schedule : {Schedule::persistent, Schedule::stream_k}) {
        const Prediction& candidate = of[static_cast<int>(schedule)];
        if (candidate.seconds * kNoticeable < cell.best.seconds) {
          cell.winner = schedule;
          cell.best = candidate;
        }
      }
      cell.over_block = of[0].seconds / cell.best.seconds;
      cell.over_persistent = of[1].seconds / cell.best.seconds;
      cells.push_back(cell);
    }
  }
  return cells;
}

}  // namespace warpwright::roofline
