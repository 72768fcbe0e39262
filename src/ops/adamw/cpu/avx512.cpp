#define WARPWRIGHT_ISA avx512
#include "ops/adamw/cpu/blocks.inl"
