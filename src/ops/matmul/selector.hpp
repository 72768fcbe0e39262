// The tile that a product on Hopper's tensor cores is made of: the one that is predicted to be the fastest
// (time.hpp). A pure function of problem and device.
#pragma once

#include <vector>

#include "ops/matmul/time.hpp"

namespace warpwright::ops::matmul {

struct Selection {
  int tile = -1;    // in kTiles; -1: there is none
  int workers = 0;  // blocks or clusters of them
  int raster = 1;
  double seconds = 0;
  std::size_t partial_bytes = 0;  // of sums of tiles whose depth is cut
};
// "128x192, 2 groups, clusters 2x1, 66 workers": the tile, its groups of warps (or "in turns", each on a tile
// of its own), the cluster's blocks.
std::string describe(const Selection& selection);
// Every kernel that there is for it under a schedule, with the number of workers that make sense.
std::vector<Selection> selections(const Request& request, Schedule schedule, const DeviceInfo& device);
// The one that is predicted to be the fastest.
Selection select(const Request& request, Schedule schedule, const DeviceInfo& device);

namespace cuda {
// One kernel of the list, of a product that is not empty and suits the copy engine (wgmma.hpp).
void run(const Context& context, const MatmulForward& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);
std::size_t workspace(const MatmulForwardProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDxProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDwProblem& problem, const Selection& selection);

// The version of the library of cuda.cublaslt; "" if it cannot be loaded.
std::string cublaslt_version();
}  // namespace cuda

}  // namespace warpwright::ops::matmul
