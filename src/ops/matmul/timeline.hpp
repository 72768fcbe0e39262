// The times at which the groups of a persistent kernel multiply and run their epilogues, for
// `warpwright bench products --timeline`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul {

// One tile of one group, in clocks of its multiprocessor: the start of its multiplications, the start of its
// epilogue and the end of it.
struct Stamps {
  long long products = 0, epilogue = 0, end = 0;
};
inline constexpr int kTracedTiles = 32;  // the first tiles of each group

struct Timeline {
  std::vector<std::vector<std::vector<Stamps>>> blocks;  // [block][group][tile]
  double clocks_per_second = 0;

  // The share of the epilogues' clocks during which the block's other group multiplies, 0 to 1.
  double overlap() const;
  // One block's stamps as JSON, for tools/plot.py.
  std::string json(std::string_view product, std::size_t block) const;
};

#if WARPWRIGHT_CUDA
namespace cuda {
// Runs a bf16 forward on the persistent schedule, with tiles of 128 × 192 and groups that take turns, and
// waits for it. The matrices must be aligned for the copy engine (wgmma.hpp).
Timeline trace_forward(const Context& context, const MatmulForward& args);
}  // namespace cuda
#endif

}  // namespace warpwright::ops::matmul
