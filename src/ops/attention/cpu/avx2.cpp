#define WARPWRIGHT_ISA avx2
#include "ops/attention/cpu/forward.inl"

#include "ops/attention/cpu/backward.inl"
