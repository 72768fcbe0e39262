#define WARPWRIGHT_ISA avx512
#include "ops/residual/cpu/elements.inl"
