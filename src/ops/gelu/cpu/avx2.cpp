#define WARPWRIGHT_ISA avx2
#include "ops/gelu/cpu/elements.inl"
