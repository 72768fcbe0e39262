#define WARPWRIGHT_ISA avx2
#include "ops/layernorm/cpu/rows.inl"
