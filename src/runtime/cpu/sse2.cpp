#define WARPWRIGHT_ISA sse2
#include "runtime/cpu/ceiling.inl"
