#include "ops/matmul/mma_selector.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ops/matmul/workers.hpp"

namespace warpwright::ops::matmul {
namespace {

roofline::Math math_of(DType dtype) {
  return dtype == DType::bf16  ? roofline::Math::bf16
         : dtype == DType::f16 ? roofline::Math::f16
                               : roofline::Math::tf32;
}

// Thin slabs need twice as many barriers. On an H200 that costs 2 to 5 % of the time of large products.
constexpr int kThickSlab = 128;
constexpr double kThinSlabs = 1.03;

bool whole_chunks(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

}  // namespace

bool in_chunks(const MatmulForwardProblem& p) {
  return p.aligned_factors && whole_chunks(p.K, p.dtype);
}
bool in_chunks(const MatmulDxProblem& p) {
  return p.aligned_factors && whole_chunks(p.N, p.dtype) && whole_chunks(p.K, p.dtype);
}
bool in_chunks(const MatmulDwProblem& p) {
  return p.aligned_factors && whole_chunks(p.N, p.dtype) && whole_chunks(p.K, p.dtype);
}

std::string describe(const MmaSelection& s) {
  const MmaTile& tile = kMmaTiles[s.tile];
  return fmt::format("{}x{}, slabs of {} bytes, {} workers{}", tile.rows, tile.cols, tile.slab_bytes,
                     s.workers, s.aligned ? "" : ", element by element");
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
  const auto depth = static_cast<std::int64_t>(tile.slab_bytes / roofline::element_bytes(math));
  roofline::Options options;
  options.tiling = {.instruction = {16, 8, static_cast<std::int64_t>(32 / roofline::element_bytes(math))},
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
  std::vector<MmaSelection> list;
  const roofline::Machine machine = mma_machine(device);
  const roofline::Product product = roofline_product(r);
  for (int index = 0; index < kMmaTileCount; ++index) {
    const MmaTile& tile = kMmaTiles[index];
    if (roofline::occupancy_of(machine, needs_of(tile)).blocks < tile.blocks ||
        (!aligned && index != kUnalignedMmaTile))
      continue;
    for (const Workers& workers :
         workers_of(machine, product, roofline_options(tile, product.math), schedule, tile.threads() / 128)) {
      list.push_back(
          {.tile = index,
           .aligned = aligned,
           .workers = workers.count,
           // In a large product, a narrow raster keeps the rows in the cache while the columns pass.
           .raster = r.direction != Direction::dw && r.extent.rows >= 16384 ? 4 : 16,
           .seconds = workers.seconds * (tile.slab_bytes < kThickSlab ? kThinSlabs : 1),
           .partial_bytes = workers.partial_bytes});
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
