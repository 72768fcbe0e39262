#define WARPWRIGHT_ISA avx512
#include "ops/bias_residual_layernorm/cpu/rows.inl"
