#define WARPWRIGHT_ISA avx2
#include "ops/adamw/cpu/blocks.inl"
