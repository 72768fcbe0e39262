#define WARPWRIGHT_ISA avx512
#include "ops/global_norm/cpu/blocks.inl"
