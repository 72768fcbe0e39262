#define WARPWRIGHT_ISA avx2
#include "runtime/cpu/ceiling.inl"
