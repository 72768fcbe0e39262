// Connects the Kernel objects (wgmma.cpp) with the CUDA kernels on Hopper's tensor cores.
#pragma once

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul::cuda {

// Runs one of the selections. The product must not be empty, and its matrices must be aligned for the copy
// engine.
void run(const Context& context, const MatmulForward& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void run(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);
// Bytes of scratch that run() needs.
std::size_t workspace(const MatmulForwardProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDxProblem& problem, const Selection& selection);
std::size_t workspace(const MatmulDwProblem& problem, const Selection& selection);

// Launches the selected kernel, for run(). The scratch holds the selection's partial_bytes. If there is a
// dbias, dw writes the sums of dout's columns over each 64 rows after them: (⌈M/64⌉, N) fp32.
void wgmma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                   const Selection& selection);
void wgmma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void wgmma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);

}  // namespace warpwright::ops::matmul::cuda
