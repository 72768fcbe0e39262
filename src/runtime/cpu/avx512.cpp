#define WARPWRIGHT_ISA avx512
#include "runtime/cpu/ceiling.inl"
