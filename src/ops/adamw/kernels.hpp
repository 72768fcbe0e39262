// Shared by the kernels.
#pragma once

#include "ops/adamw/adamw.hpp"

namespace warpwright::ops::adamw_kernels {

// True if bf16 parameters have no masters.
bool without_masters(const AdamW& args);

}  // namespace warpwright::ops::adamw_kernels
