// Chooses the tile and the workers of a product on the tensor cores of compute capability 8.0 and later
// (mma.sync), for each of three schedules. The time of every choice is predicted by the roofline of the GPU
// (roofline/gemm.hpp). All functions are pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ops/matmul/time.hpp"
#include "roofline/gemm.hpp"

namespace warpwright::ops::matmul {

// A block's tile of the result, the part of each of its warps, the slabs in shared memory (64 bytes of the
// depth each) and the blocks that a multiprocessor holds at once.
struct MmaTile {
  int rows, cols, warp_rows, warp_cols, stages, blocks;

  constexpr int threads() const { return rows / warp_rows * (cols / warp_cols) * 32; }
  constexpr int shared_bytes() const { return (rows + cols) * 64 * stages; }
  // The most that a thread can have if all blocks fit.
  constexpr int registers() const { return std::min(65536 / (threads() * blocks) / 8 * 8, 255); }
};
// In bf16, 64 bytes are 32 terms: these are 128 × 256 × 32 with warps of 64 × 64 × 32, and so on.
inline constexpr MmaTile kMmaTiles[] = {
    {128, 256, 64, 64, 4, 1},
    {128, 128, 64, 64, 3, 2},
    {64, 64, 32, 32, 3, 4},
};
inline constexpr int kMmaTileCount = static_cast<int>(std::size(kMmaTiles));
inline constexpr int kUnalignedMmaTile = 1;  // has the kernels that load factors element by element

struct MmaSelection {
  int tile = -1;  // index in kMmaTiles; -1: no kernel fits
  bool aligned = true;
  int workers = 0;  // blocks
  int raster = 1;   // tiles that follow each other down the rows before the next column of tiles
  double seconds = 0;
  std::size_t partial_bytes = 0;  // workspace for partial sums of tiles whose depth is cut
};
// "128x256, 132 workers", "128x128, 264 workers, element by element".
std::string describe(const MmaSelection& selection);

// The GPU as the roofline knows it: its own sizes, and the figures per clock of a GPU with the same tensor
// cores. Hopper and later run mma.sync as an A100 does, or faster.
roofline::Machine mma_machine(const DeviceInfo& device);
// The roofline's product and options for a tile.
roofline::Product roofline_product(const Request& request);
roofline::Options roofline_options(const MmaTile& tile, roofline::Math math);

// Every kernel that can run the product with this schedule, once per useful number of workers. aligned: the
// rows of both factors begin at multiples of 16 bytes.
std::vector<MmaSelection> mma_selections(const Request& request, Schedule schedule, bool aligned,
                                         const DeviceInfo& device);
// The selection with the shortest predicted time; tile is -1 if there is none.
MmaSelection select_mma(const Request& request, Schedule schedule, bool aligned, const DeviceInfo& device);

namespace cuda {
// Runs one of the selections. The result must not be empty.
void run(const Context& context, const MatmulForward& args, Schedule schedule, const MmaSelection& selection);
void run(const Context& context, const MatmulDx& args, Schedule schedule, const MmaSelection& selection);
void run(const Context& context, const MatmulDw& args, Schedule schedule, const MmaSelection& selection);
// Bytes of scratch that run() needs.
std::size_t workspace(const MatmulForwardProblem& problem, const MmaSelection& selection);
std::size_t workspace(const MatmulDxProblem& problem, const MmaSelection& selection);
std::size_t workspace(const MatmulDwProblem& problem, const MmaSelection& selection);
}  // namespace cuda

}  // namespace warpwright::ops::matmul
