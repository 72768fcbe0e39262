// Shared by the kernels.
#pragma once

#include "ops/adamw/adamw.hpp"

namespace warpwright::ops::adamw_kernels {

// The parameters' narrowest dtype.
DType narrowest_dtype(const AdamW& args);
// True if bf16 parameters have no masters.
bool without_masters(const AdamW& args);

}  // namespace warpwright::ops::adamw_kernels
