// Chooses the tile and the workers of a product on the tensor cores of compute capability 8.0 and later
// (mma.sync), for each of three schedules. The time of every choice is predicted by the roofline of the GPU
// (roofline/gemm.hpp). All functions are pure.
#pragma once

#include <string>
#include <vector>

#include "ops/matmul/mma_tiles.hpp"
#include "ops/matmul/time.hpp"
#include "roofline/gemm.hpp"
#include "roofline/occupancy.hpp"

namespace warpwright::ops::matmul {

// "128x256, 132 workers", "128x128, 264 workers, element by element".
std::string describe(const MmaSelection& selection);

// The GPU as the roofline knows it: its own sizes, and the figures per clock of a GPU with the same tensor
// cores. Hopper and later run mma.sync as an A100 does, or faster.
roofline::Machine mma_machine(const DeviceInfo& device);
// The roofline's product, with sides of at least one.
roofline::Product roofline_product(const Request& request);
roofline::Options roofline_options(const MmaTile& tile, roofline::Math math);
// The most that one block of a tile takes.
roofline::BlockNeeds needs_of(const MmaTile& tile);

// True if the rows of both factors are whole chunks of 16 bytes, and begin at multiples of their size.
bool in_chunks(const MatmulForwardProblem& problem);
bool in_chunks(const MatmulDxProblem& problem);
bool in_chunks(const MatmulDwProblem& problem);

// Every kernel that can run the product with this schedule, once per useful number of workers. aligned: the
// factors are in chunks.
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
