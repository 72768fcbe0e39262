#define WARPWRIGHT_ISA avx2
#include "ops/embedding_layernorm/cpu/rows.inl"
