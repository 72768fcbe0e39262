#define WARPWRIGHT_ISA avx2
#include "ops/bias_residual_layernorm/cpu/rows.inl"
