#define WARPWRIGHT_ISA avx512
#include "ops/embedding/cpu/rows.inl"
