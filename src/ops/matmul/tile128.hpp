// The tile of the kernels on a GPU's ordinary arithmetic units (cuda/tile128.cu), and the number of their
// blocks under each schedule.
#pragma once

#include "ops/matmul/time.hpp"
#include "ops/matmul/workers.hpp"

namespace warpwright::ops::matmul {

struct Tile128 {
  static constexpr int kSide = 128, kDepth = 32, kThreads = 256;
  static constexpr int kBlocks = 2;  // that a multiprocessor holds at once
};

// The number with the shortest predicted time; 0 if the product has too many tiles.
Workers tile128_workers(const Request& request, Schedule schedule, const DeviceInfo& device);

}  // namespace warpwright::ops::matmul
