#define WARPWRIGHT_ISA avx512
#include "ops/classifier/cpu/rows.inl"
