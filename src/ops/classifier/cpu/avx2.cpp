#define WARPWRIGHT_ISA avx2
#include "ops/classifier/cpu/rows.inl"
