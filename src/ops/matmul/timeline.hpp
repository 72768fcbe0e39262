// When the groups of a persistent kernel multiply and when they are at their epilogues: bench products
// --timeline.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul {

// Of one tile of one group, in clocks of its multiprocessor.
struct Stamps {
  long long products = 0, epilogue = 0, end = 0;  // beginnings, and the end of the epilogue
};
inline constexpr int kTracedTiles = 32;  // of each group: its first ones

struct Timeline {
  std::vector<std::vector<std::vector<Stamps>>> blocks;  // by block, group, tile
  double clocks_per_second = 0;

  // The share of the epilogues' clocks in which the block's other group multiplies.
  double overlap() const;
  // One block's stamps, as tools/plot.py draws them.
  std::string json(std::string_view product, std::size_t block) const;
};

#if WARPWRIGHT_CUDA
namespace cuda {
// Runs the forward of bf16 on the persistent schedule with 128 × 192 tiles, groups taking turns. The product
// must suit the copy engine.
Timeline trace_forward(const Context& context, const MatmulForward& args);
}  // namespace cuda
#endif

}  // namespace warpwright::ops::matmul
