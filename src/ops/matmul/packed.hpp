// Packs a weight once for a CPU's kernels, for products that are computed repeatedly. A forward with
// MatmulForward::packed gives the same bits as one without, and saves packing the weight. Only the kernels
// for fp32 with AVX2 or AVX-512, and for bf16 with AVX512_BF16 or AMX, take packed weights.
#pragma once

#include <string>

#include "ops/matmul/matmul.hpp"

namespace warpwright::ops {

// The name of the layout in which this machine takes weights of a dtype; "" if it takes none. If a kernel is
// forced, it is that kernel's layout. The name changes with every change of the layout, so that data stored
// in another layout is not mistaken for it.
std::string packed_layout(DType dtype, const DeviceInfo& device);

// Bytes of a packed weight (N, K), a multiple of 64. Throws Error if packed_layout() is "".
std::int64_t packed_bytes(std::int64_t N, std::int64_t K, DType dtype, const DeviceInfo& device);

// Packs `weight`, (N, K) contiguous. packed: (packed_bytes) u8, which begins at a
// multiple of 64 bytes. Throws Error if packed_layout() is "".
void pack_weight(const Context& context, const Tensor& weight, const Tensor& packed);

}  // namespace warpwright::ops
