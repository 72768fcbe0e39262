#define WARPWRIGHT_ISA avx512
#include "ops/gelu/cpu/elements.inl"
