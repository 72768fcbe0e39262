#include "ops/matmul/mma_selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace warpwright::ops::matmul {
namespace {

constexpr int kSlabBytes = 64;
constexpr std::int64_t kMostFlags = 1024;

roofline::Math math_of(DType dtype) {
  return dtype == DType::bf16  ? roofline::Math::bf16
         : dtype == DType::f16 ? roofline::Math::f16
                               : roofline::Math::tf32;
}

}  // namespace

std::string describe(const MmaSelection& s) {
  const MmaTile& tile = kMmaTiles[s.tile];
  return fmt::format("{}x{}, {} workers{}", tile.rows, tile.cols, s.workers,
                     s.aligned ? "" : ", element by element");
}

roofline::Machine mma_machine(const DeviceInfo& device) {
  const GpuFeatures& gpu = device.gpu;
  roofline::Measured measured;
  if (gpu.major == 8) measured.name = device.name;
  measured.major = 8;
  measured.minor = gpu.major > 8 ? 0 : gpu.minor == 9 ? 9 : gpu.minor > 0 ? 6 : 0;
  measured.multiprocessors = gpu.multiprocessors;
  measured.l2_bytes = static_cast<std::int64_t>(device.l2_bytes);
  measured.shared_bytes = static_cast<std::int64_t>(gpu.shared_bytes_per_multiprocessor);
  measured.shared_bytes_per_block = static_cast<std::int64_t>(gpu.shared_bytes_per_block);
  return roofline::measured_machine(measured);
}

roofline::Product roofline_product(const Request& r) {
  const bool fp32 = r.direction == Direction::dw || r.finish == Finish::widened || r.dtype == DType::f32;
  const auto at_least_one = [](std::int64_t n) { return std::max<std::int64_t>(n, 1); };
  return {at_least_one(r.extent.rows),
          at_least_one(r.extent.cols),
          at_least_one(r.extent.depth),
          math_of(r.dtype),
          fp32 ? 4.0 : 2.0,
          r.adds};
}

roofline::Options roofline_options(const MmaTile& tile, roofline::Math math) {
  const auto depth = static_cast<std::int64_t>(kSlabBytes / roofline::element_bytes(math));
  roofline::Options options;
  options.tiling = {.instruction = {16, 8, depth / 2},
                    .warp = {tile.warp_rows, tile.warp_cols, depth},
                    .block = {tile.rows, tile.cols, depth}};
  options.blocks_per_multiprocessor = tile.blocks;
  return options;
}

roofline::BlockNeeds needs_of(const MmaTile& tile) {
  return {.threads = tile.threads(), .registers = tile.registers(), .shared_bytes = tile.shared_bytes()};
}

std::vector<MmaSelection> mma_selections(const Request& r, Schedule schedule, bool aligned,
                                         const DeviceInfo& device) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max(), kMostTiles = std::int64_t{1} << 30;
  std::vector<MmaSelection> list;
  const roofline::Machine machine = mma_machine(device);
  const roofline::Product product = roofline_product(r);
  for (int index = 0; index < kMmaTileCount; ++index) {
    const MmaTile& tile = kMmaTiles[index];
    if (roofline::occupancy_of(machine, needs_of(tile)).blocks < tile.blocks ||
        (!aligned && index != kUnalignedMmaTile))
      continue;
    const roofline::Options options = roofline_options(tile, product.math);
    const std::int64_t slots = roofline::slots_of(machine, options);
    const roofline::Work work = roofline::tiles_of(machine, product, options).work();
    if (work.tiles > kMostTiles || 2 * slots * work.iterations > kMost) continue;
    const auto add = [&](std::int64_t workers) {
      MmaSelection s{.tile = index, .aligned = aligned, .workers = static_cast<int>(workers)};
      // In a large product, a narrow raster keeps the rows in the cache while the columns pass.
      s.raster = r.direction != Direction::dw && r.extent.rows >= 16384 ? 4 : 16;
      s.seconds =
          roofline::predict(machine, product, options, roofline::split(schedule, work, slots, workers))
              .seconds;
      if (schedule == Schedule::stream_k) {
        s.partial_bytes =
            static_cast<std::size_t>(workers) * static_cast<std::size_t>(tile.rows * tile.cols) * 4;
      }
      list.push_back(s);
    };
    if (schedule == Schedule::block) {
      add(work.tiles);
    } else if (schedule == Schedule::persistent) {
      add(std::min(work.tiles, slots));
    } else if (slots * tile.threads() / 128 <= kMostFlags) {
      add(slots);
      // Fewer workers, the same number for every tile: no worker has parts of two tiles, and an owner adds
      // fewer partial sums.
      for (std::int64_t each = slots / work.tiles; each > 1; each /= 2) {
        if (each * work.tiles != slots) add(each * work.tiles);
      }
    }
  }
  return list;
}

MmaSelection select_mma(const Request& r, Schedule schedule, bool aligned, const DeviceInfo& device) {
  MmaSelection best;
  for (const MmaSelection& s : mma_selections(r, schedule, aligned, device)) {
    if (best.tile < 0 || s.seconds < best.seconds) best = s;
  }
  return best;
}

}  // namespace warpwright::ops::matmul
