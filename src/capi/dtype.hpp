// Converts the C ABI's dtypes to this library's.
#pragma once

#include <string_view>

#include "core/dtype.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

// Throws an Error that names the argument if the value is not a dtype.
DType dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype);
// The same for a mask, which may also hold integers.
DType mask_dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype);

}  // namespace warpwright::capi
