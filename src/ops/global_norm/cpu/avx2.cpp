#define WARPWRIGHT_ISA avx2
#include "ops/global_norm/cpu/blocks.inl"
