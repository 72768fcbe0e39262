// Connects the kernels' objects (wgmma.cpp) to the kernels on Hopper's tensor cores.
#pragma once

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul::cuda {

bool wgmma_is_built();

// The set of flags of this Context (wgmma_run.cuh). The launches of one Context follow each other, as they do
// in its scratch, which has the partial sums. The launches of two Contexts may run at once, so each has its
// own set.
inline constexpr int kFlagSets = 64, kFlagsOfSet = 1024;
int flag_set_of(const Context& context);

// These functions need aligned factors and a product that is not empty. The scratch has the selection's
// partial_bytes. If dbias is asked for, dw leaves the sums of dout's columns over each 64 rows (⌈M/64⌉, N)
// after them.
void wgmma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                   const Selection& selection);
void wgmma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void wgmma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);

}  // namespace warpwright::ops::matmul::cuda
