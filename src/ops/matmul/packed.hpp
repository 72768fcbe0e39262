// Weights that are packed once for the processor's kernels, for products that are computed repeatedly. A
// forward with MatmulForward::packed gives the same bits as one without, but need not pack the weight. Only
// the kernels for fp32 with AVX2 or AVX-512, and for bf16 with AMX, take packed weights.
#pragma once

#include <string>

#include "ops/matmul/matmul.hpp"

namespace warpwright::ops {

// The name of the layout in which this machine takes weights of a dtype; "" if it takes none. The name
// changes with every change of the layout, so that data stored in another layout is not mistaken for it.
std::string packed_layout(DType dtype, const DeviceInfo& device);

// The size of a packed weight (N, K). packed_layout() must not be "". A multiple of 64.
std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device);

// Packs weight, (N, K) contiguous. packed: (packed_bytes) u8, starting at a multiple of 64 bytes.
void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed);

}  // namespace warpwright::ops
