#define WARPWRIGHT_ISA avx512
#include "ops/residual_layernorm/cpu/rows.inl"
