// Chooses the kernel of a product on Hopper's tensor cores: the selector predicts the time of every tile and
// worker count of a schedule (time.hpp), and picks the fastest. All choices are pure functions of problem and
// device.
#pragma once

#include <vector>

#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul {

struct Selection {
  int tile = -1;       // index in kTiles; -1: no kernel fits
  int workers = 0;     // blocks, or clusters if the tile has clusters
  int raster = 1;      // tiles that follow each other down the rows before the next column of tiles
  double seconds = 0;  // predicted
  std::size_t partial_bytes = 0;  // workspace for partial sums of tiles whose depth is cut
};
// "128x192, 2 groups, clusters 2x1, 66 workers": the tile, the groups of warps that share it ("in turns" if
// each group has a tile of its own), the blocks of a cluster, the workers.
std::string describe(const Selection& selection);
// Every kernel of a schedule that can run the product, once per useful number of workers.
std::vector<Selection> selections(const Request& request, Schedule schedule, const DeviceInfo& device);
// The selection with the shortest predicted time; tile is -1 if the schedule has no kernel for the product.
Selection select(const Request& request, Schedule schedule, const DeviceInfo& device);

}  // namespace warpwright::ops::matmul
