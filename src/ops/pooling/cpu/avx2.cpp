#define WARPWRIGHT_ISA avx2
#include "ops/pooling/cpu/rows.inl"
