// The kernels that variants.cpp chooses from.
#pragma once

#include "ops/padding/padding.hpp"

namespace warpwright::ops::padding {

void lengths_reference(const Context& context, const PaddingLengths& args);
void pack_reference(const Context& context, const PaddingPack& args);
void unpack_reference(const Context& context, const PaddingUnpack& args);

namespace cpu {
void lengths(const Context& context, const PaddingLengths& args);
void pack(const Context& context, const PaddingPack& args);
void unpack(const Context& context, const PaddingUnpack& args);
}  // namespace cpu

namespace cuda {
void lengths(const Context& context, const PaddingLengths& args);
void pack(const Context& context, const PaddingPack& args);
void unpack(const Context& context, const PaddingUnpack& args);
}  // namespace cuda

}  // namespace warpwright::ops::padding
