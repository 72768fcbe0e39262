#define WARPWRIGHT_ISA avx2
#include "ops/matmul/cpu/fma.inl"
#include "ops/matmul/cpu/skinny.inl"
