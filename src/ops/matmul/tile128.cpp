#include "ops/matmul/tile128.hpp"

#include <algorithm>

#include "ops/matmul/mma_selector.hpp"

namespace warpwright::ops::matmul {

Workers tile128_workers(const Request& request, Schedule schedule, const DeviceInfo& device) {
  roofline::Product product = roofline_product(request);
  product.math = roofline::Math::f32;
  roofline::Options options;
  options.tiling = {.instruction = {1, 1, 1},
                    .warp = {16, Tile128::kSide, Tile128::kDepth},
                    .block = {Tile128::kSide, Tile128::kSide, Tile128::kDepth}};
  options.blocks_per_multiprocessor = Tile128::kBlocks;
  const std::vector<Workers> all =
      workers_of(mma_machine(device), product, options, schedule, Tile128::kThreads / 128);
  return all.empty() ? Workers() : *std::ranges::min_element(all, {}, &Workers::seconds);
}

}  // namespace warpwright::ops::matmul
