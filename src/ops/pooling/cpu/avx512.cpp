#define WARPWRIGHT_ISA avx512
#include "ops/pooling/cpu/rows.inl"
