#include "ops/cuda/hopper/tensor_map.hpp"

#include <cudaTypedefs.h>

#include "runtime/cuda/check.hpp"

namespace warpwright::ops::hopper {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    warpwright::cuda::check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "looking for cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return encode;
}

[[noreturn]] void throw_not_taken() {
  warpwright::cuda::throw_error(cudaErrorInvalidValue, "describing a tensor to the copy engine");
}

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::u8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default:
      throw_not_taken();
  }
}

CUtensorMapSwizzle swizzle_of(int bytes) {
  if (bytes == 64) return CU_TENSOR_MAP_SWIZZLE_64B;
  if (bytes == 128) return CU_TENSOR_MAP_SWIZZLE_128B;
  throw_not_taken();
}

}  // namespace

template <int kRank>
CUtensorMap map_boxes(const void* data, DType dtype, const std::array<std::int64_t, kRank>& sizes,
                      const std::array<std::int64_t, kRank - 1>& strides, const std::array<int, kRank>& box,
                      int swizzled) {
  CUtensorMap map;
  cuuint64_t extents[kRank], bytes[kRank];
  cuuint32_t boxes[kRank], steps[kRank];
  for (unsigned i = 0; i < kRank; ++i) {
    extents[i] = static_cast<cuuint64_t>(sizes[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i > 0) bytes[i - 1] = static_cast<cuuint64_t>(strides[i - 1]) * size_of(dtype);
  }
  const CUresult result = encoder()(&map, type_of(dtype), kRank, const_cast<void*>(data), extents, bytes,
                                    boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(swizzled),
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw_not_taken();
  return map;
}

template CUtensorMap map_boxes<2>(const void*, DType, const std::array<std::int64_t, 2>&,
                                  const std::array<std::int64_t, 1>&, const std::array<int, 2>&, int);
template CUtensorMap map_boxes<3>(const void*, DType, const std::array<std::int64_t, 3>&,
                                  const std::array<std::int64_t, 2>&, const std::array<int, 3>&, int);
template CUtensorMap map_boxes<4>(const void*, DType, const std::array<std::int64_t, 4>&,
                                  const std::array<std::int64_t, 3>&, const std::array<int, 4>&, int);

}  // namespace warpwright::ops::hopper
