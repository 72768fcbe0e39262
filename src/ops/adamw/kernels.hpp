// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/adamw/adamw.hpp"

namespace warpwright::ops::adamw_kernels {

// The dtype of the parameters that have 16 bits, or of all.
DType narrowest_dtype(const AdamW& args);
// Whether parameters of 16 bits have no masters.
bool without_masters(const AdamW& args);

void reference(const Context& context, const AdamW& args);

namespace avx2 {
void run(const Context& context, const AdamW& args);
}

namespace avx512 {
void run(const Context& context, const AdamW& args);
}

namespace cuda {
void multi_tensor(const Context& context, const AdamW& args);
void plain(const Context& context, const AdamW& args);
}  // namespace cuda

}  // namespace warpwright::ops::adamw_kernels
