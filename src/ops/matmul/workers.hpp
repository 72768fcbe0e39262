// The numbers of blocks that are useful for a kernel with one tile, under each of three schedules, with the
// times that the GPU's roofline predicts (roofline/gemm.hpp).
#pragma once

#include <vector>

#include "ops/matmul/kernels.hpp"
#include "roofline/gemm.hpp"

namespace warpwright::ops::matmul {

struct Workers {
  int count = 0;  // blocks
  double seconds = 0;
  std::size_t partial_bytes = 0;  // workspace for partial sums of tiles whose depth is cut
};

// groups: of 128 threads of a block. Each has a flag if depths are cut. Empty if the product has too many
// tiles, or if there are too few flags.
std::vector<Workers> workers_of(const roofline::Machine& machine, const roofline::Product& product,
                                const roofline::Options& options, Schedule schedule, int groups);

}  // namespace warpwright::ops::matmul
