// What a file that is compiled for one instruction set calls itself: WARPWRIGHT_ISA is avx2, avx512 or
// amx_bf16.
#pragma once

#include "ops/kernel.hpp"

#define WARPWRIGHT_TEXT_OF(word) #word
#define WARPWRIGHT_TEXT(macro) WARPWRIGHT_TEXT_OF(macro)

namespace warpwright::ops {
namespace {

// "cpu.avx512", which other kernels extend: kCpu + "_skinny".
constexpr KernelName kCpu = "cpu." WARPWRIGHT_TEXT(WARPWRIGHT_ISA) ""_kernel;
constexpr Needs kThisCpu = Needs::WARPWRIGHT_ISA;

}  // namespace
}  // namespace warpwright::ops
