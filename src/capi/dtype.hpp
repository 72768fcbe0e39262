// The C ABI's dtypes as this library's.
#pragma once

#include <string_view>

#include "core/dtype.hpp"
#include "warpwright/warpwright.h"

namespace warpwright::capi {

// Throws Error naming the argument for what is none.
DType dtype_of(std::string_view function, std::string_view argument, warpwright_dtype dtype);

}  // namespace warpwright::capi
