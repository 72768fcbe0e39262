// Descriptors of tensors for Hopper's tensor copy engine, for sources that are compiled with CUDA's headers.
// Source: CUDA driver API, cuTensorMapEncodeTiled.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "core/dtype.hpp"

namespace warpwright::ops::hopper {

// A box is given by kRank sizes, the innermost first. Its rows have at most `swizzled` bytes (128 or 64) and
// are swizzled by that many bytes in shared memory. strides: those of all dimensions except the innermost, in
// elements. The address and every stride are multiples of 16 bytes. A box reads zeros beyond the sizes.
// Throws Error if the copy engine does not take the tensor: a dtype other than bf16, fp16, fp32 and u8,
// another swizzle, or what its driver refuses.
template <int kRank>
CUtensorMap map_boxes(const void* data, DType dtype, const std::array<std::int64_t, kRank>& sizes,
                      const std::array<std::int64_t, kRank - 1>& strides, const std::array<int, kRank>& box,
                      int swizzled);

extern template CUtensorMap map_boxes<2>(const void*, DType, const std::array<std::int64_t, 2>&,
                                         const std::array<std::int64_t, 1>&, const std::array<int, 2>&, int);
extern template CUtensorMap map_boxes<3>(const void*, DType, const std::array<std::int64_t, 3>&,
                                         const std::array<std::int64_t, 2>&, const std::array<int, 3>&, int);
extern template CUtensorMap map_boxes<4>(const void*, DType, const std::array<std::int64_t, 4>&,
                                         const std::array<std::int64_t, 3>&, const std::array<int, 4>&, int);

}  // namespace warpwright::ops::hopper
