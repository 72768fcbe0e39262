// The loops that runtime/ceiling.cpp times, once per instruction set. Each is run by one thread on memory of
// its own.
#pragma once

#include <cstdint>

namespace warpwright::ceiling {

struct StreamKernels {
  // n is a multiple of 64 floats; every array is 64-byte aligned.
  float (*read)(const float* a, std::int64_t n);                          // Σa: 4 bytes an element
  void (*copy)(const float* a, float* b, std::int64_t n);                 // b = a: 8
  void (*copy_past_caches)(const float* a, float* b, std::int64_t n);     // the same with streaming stores
  void (*add)(const float* a, const float* b, float* c, std::int64_t n);  // c = a + b: 12
  void (*add_past_caches)(const float* a, const float* b, float* c, std::int64_t n);
};

struct Kernels {
  StreamKernels stream;
  // `iterations` rounds of multiply-adds on registers only; the result keeps them from being optimized away.
  float (*multiply_add)(std::int64_t iterations);
  double flops_per_iteration;
};

namespace sse2 {
Kernels kernels();
}
namespace avx2 {
Kernels kernels();
}
namespace avx512 {
Kernels kernels();
}
namespace avx512_bf16 {
float multiply_add(std::int64_t iterations);
double flops_per_iteration();
}  // namespace avx512_bf16
namespace amx_bf16 {
float multiply_add(std::int64_t iterations);
double flops_per_iteration();
}  // namespace amx_bf16

}  // namespace warpwright::ceiling
