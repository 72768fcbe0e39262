#define WARPWRIGHT_ISA avx2
#include "ops/embedding/cpu/rows.inl"
