// The names of the instruction set for which the including file is compiled: WARPWRIGHT_ISA is avx2, avx512,
// avx512_bf16, amx_bf16, or one for int8 (avx_vnni, avx512_vnni, amx_int8).
#pragma once

#include "ops/kernel.hpp"

#define WARPWRIGHT_TEXT_OF(word) #word
#define WARPWRIGHT_TEXT(macro) WARPWRIGHT_TEXT_OF(macro)

namespace warpwright::ops {
namespace {

// For example "cpu.avx512". A file with a second kernel extends it: kCpu + "_skinny".
constexpr KernelName kCpu = "cpu." WARPWRIGHT_TEXT(WARPWRIGHT_ISA) ""_kernel;
constexpr Needs kThisCpu = Needs::WARPWRIGHT_ISA;

}  // namespace
}  // namespace warpwright::ops
