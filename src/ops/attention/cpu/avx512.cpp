#define WARPWRIGHT_ISA avx512
#include "ops/attention/cpu/forward.inl"

#include "ops/attention/cpu/backward.inl"
