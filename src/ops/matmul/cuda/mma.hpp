// Connects the Kernel objects (mma.cpp) with the CUDA kernels on mma.sync.
#pragma once

#include "ops/matmul/kernels.hpp"
#include "ops/matmul/mma_tiles.hpp"

namespace warpwright::ops::matmul::cuda {

// Launches one product with a selected kernel. `partials` points to the selection's partial_bytes of scratch.
// Activations and dbias are not part of it.
void mma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                 const MmaSelection& selection, void* partials);
void mma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const MmaSelection& selection,
            void* partials);
void mma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const MmaSelection& selection,
            void* partials);

}  // namespace warpwright::ops::matmul::cuda
