// Weights laid out once for the processor's kernels, for products that are computed again and again: a
// forward with MatmulForward::packed has the bits of one without and lays nothing out. fp32 with AVX2 or
// AVX-512 and bf16 with AMX; no other kernel takes packed weights.
#pragma once

#include <string>

#include "ops/matmul/matmul.hpp"

namespace warpwright::ops {

// The name of the layout in which this machine takes weights of a dtype; it changes with every change of the
// layout, so that what was stored in another one is not mistaken for it. "" where none is taken.
std::string packed_layout(DType dtype, const DeviceInfo& device);

// Of a weight (N, K), in the layout of packed_layout, which must not be "". A multiple of 64.
std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device);

// weight: (N, K) contiguous. packed: (packed_bytes) u8, starting at a multiple of 64 bytes.
void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed);

}  // namespace warpwright::ops
