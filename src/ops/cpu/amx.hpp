// simd.hpp's part for AMX: the tiles' configuration. Only for files that are compiled with AMX.
#pragma once

#include "runtime/cpu/amx.hpp"

namespace warpwright::ops::simd {

using warpwright::TileSession;

}  // namespace warpwright::ops::simd
