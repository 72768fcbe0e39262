#define WARPWRIGHT_ISA avx512
#include "ops/layernorm/cpu/rows.inl"
