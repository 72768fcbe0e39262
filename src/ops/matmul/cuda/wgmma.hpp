// Between the kernels' objects (wgmma.cpp) and the kernels on Hopper's tensor cores.
#pragma once

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul::cuda {

bool wgmma_is_built();

// This Context's set of flags (wgmma_run.cuh). A Context has one of its own, since its launches
// follow each other (as they do in its scratch, where the partial sums are); two Contexts' may run at once.
inline constexpr int kFlagSets = 64, kFlagsOfSet = 1024;
int flag_set_of(const Context& context);

// Of products that are aligned and not empty; scratch: the selection's partial_bytes. Where dbias is asked
// for, dw leaves the sums of dout's columns over each 64 rows (⌈M/64⌉, N) after them.
void wgmma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                   const Selection& selection);
void wgmma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection);
void wgmma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection);

}  // namespace warpwright::ops::matmul::cuda
