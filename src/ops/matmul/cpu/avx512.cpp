#define WARPWRIGHT_ISA avx512
#include "ops/matmul/cpu/fma.inl"
#include "ops/matmul/cpu/skinny.inl"
