#define WARPWRIGHT_ISA avx2
#include "ops/residual_layernorm/cpu/rows.inl"
