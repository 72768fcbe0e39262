// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops::global_norm_kernels {

void reference(const Context& context, const GlobalNorm& args);

// Writes norm and scale, given Σ g². Rounds the norm to its dtype before it decides.
void finish(const GlobalNorm& args, double sum_of_squares);

// One partial sum in fp64 for each block of kBlock elements, none of which spans two tensors.
inline constexpr std::int64_t kBlock = 16384;

namespace avx2 {
void run(const Context& context, const GlobalNorm& args);
}

namespace avx512 {
void run(const Context& context, const GlobalNorm& args);
}

namespace cuda {
void multi_tensor(const Context& context, const GlobalNorm& args);
std::size_t multi_tensor_workspace(const GlobalNormProblem& p, const DeviceInfo& device);
}  // namespace cuda

}  // namespace warpwright::ops::global_norm_kernels
