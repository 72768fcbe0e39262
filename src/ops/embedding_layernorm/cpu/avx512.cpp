#define WARPWRIGHT_ISA avx512
#include "ops/embedding_layernorm/cpu/rows.inl"
