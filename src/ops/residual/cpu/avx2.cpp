#define WARPWRIGHT_ISA avx2
#include "ops/residual/cpu/elements.inl"
