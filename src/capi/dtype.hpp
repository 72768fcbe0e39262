// Converts the C ABI's dtypes to this library's.
#pragma once

#include <string_view>

#include "core/dtype.hpp"
#include "model/packed_layout.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

// Throws an Error that names the argument if the value is not a dtype.
DType dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype);
// The precision for inference. Also takes WARPWRIGHT_INT8; call check_int8 first.
Precision precision_of(std::string_view function, std::string_view argument, warpwright_dtype dtype,
                       const DeviceInfo& device);
// If the dtype is WARPWRIGHT_INT8 and the device has no kernels for it, throws an Error that means
// WARPWRIGHT_UNSUPPORTED.
void check_int8(std::string_view function, warpwright_dtype dtype, const DeviceInfo& device,
                warpwright_status& meaning);
// The same for a mask, which may also hold integers.
DType mask_dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype);

}  // namespace warpwright::capi
