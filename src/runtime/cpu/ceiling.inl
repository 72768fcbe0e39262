// Bandwidth and fp32 multiply-add loops.
#include <immintrin.h>

#include "runtime/cpu/ceiling_kernels.hpp"

namespace warpwright::ceiling::WARPWRIGHT_ISA {
namespace {

#if defined(__AVX512F__)
using vec = __m512;
inline vec set1(float x) {
  return _mm512_set1_ps(x);
}
inline vec load(const float* p) {
  return _mm512_load_ps(p);
}
inline void store(float* p, vec v) {
  _mm512_store_ps(p, v);
}
inline void stream(float* p, vec v) {
  _mm512_stream_ps(p, v);
}
inline vec multiply_add(vec a, vec b, vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
#elif defined(__AVX2__)
using vec = __m256;
inline vec set1(float x) {
  return _mm256_set1_ps(x);
}
inline vec load(const float* p) {
  return _mm256_load_ps(p);
}
inline void store(float* p, vec v) {
  _mm256_store_ps(p, v);
}
inline void stream(float* p, vec v) {
  _mm256_stream_ps(p, v);
}
inline vec multiply_add(vec a, vec b, vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
#else
using vec = __m128;
inline vec set1(float x) {
  return _mm_set1_ps(x);
}
inline vec load(const float* p) {
  return _mm_load_ps(p);
}
inline void store(float* p, vec v) {
  _mm_store_ps(p, v);
}
inline void stream(float* p, vec v) {
  _mm_stream_ps(p, v);
}
inline vec multiply_add(vec a, vec b, vec c) {
  return a * b + c;
}
#endif

constexpr int kLanes = sizeof(vec) / sizeof(float);

inline float first_lane(vec v) {
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  return lanes[0];
}

float read(const float* a, std::int64_t n) {
  vec s0 = set1(0), s1 = s0, s2 = s0, s3 = s0;
  for (std::int64_t i = 0; i < n; i += 4 * kLanes) {
    s0 += load(a + i);
    s1 += load(a + i + kLanes);
    s2 += load(a + i + 2 * kLanes);
    s3 += load(a + i + 3 * kLanes);
  }
  return first_lane((s0 + s1) + (s2 + s3));
}

void copy(const float* a, float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    store(b + i, load(a + i));
    store(b + i + kLanes, load(a + i + kLanes));
  }
}

void copy_past_caches(const float* a, float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    stream(b + i, load(a + i));
    stream(b + i + kLanes, load(a + i + kLanes));
  }
  _mm_sfence();
}

void add(const float* a, const float* b, float* c, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    store(c + i, load(a + i) + load(b + i));
    store(c + i + kLanes, load(a + i + kLanes) + load(b + i + kLanes));
  }
}

void add_past_caches(const float* a, const float* b, float* c, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    stream(c + i, load(a + i) + load(b + i));
    stream(c + i + kLanes, load(a + i + kLanes) + load(b + i + kLanes));
  }
  _mm_sfence();
}

// Twelve chains: more than any present core's latency (4 or 5 cycles) times its multiply-adds a cycle (2),
// and with the two factors still within AVX2's sixteen registers. x/2 + 1 stays near 2, far from any slow
// value.
float multiply_add_loop(std::int64_t iterations) {
  const vec half = set1(0.5f), one = set1(1.0f);
  vec x0 = set1(0.1f), x1 = set1(0.2f), x2 = set1(0.3f), x3 = set1(0.4f), x4 = set1(0.5f), x5 = set1(0.6f);
  vec x6 = set1(0.7f), x7 = set1(0.8f), x8 = set1(0.9f), x9 = set1(1.0f), x10 = set1(1.1f), x11 = set1(1.2f);
  for (std::int64_t i = 0; i < iterations; ++i) {
    x0 = multiply_add(x0, half, one);
    x1 = multiply_add(x1, half, one);
    x2 = multiply_add(x2, half, one);
    x3 = multiply_add(x3, half, one);
    x4 = multiply_add(x4, half, one);
    x5 = multiply_add(x5, half, one);
    x6 = multiply_add(x6, half, one);
    x7 = multiply_add(x7, half, one);
    x8 = multiply_add(x8, half, one);
    x9 = multiply_add(x9, half, one);
    x10 = multiply_add(x10, half, one);
    x11 = multiply_add(x11, half, one);
  }
  return first_lane(((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)) + ((x8 + x9) + (x10 + x11)));
}

}  // namespace

Kernels kernels() {
  return {{read, copy, copy_past_caches, add, add_past_caches}, multiply_add_loop, 12.0 * 2 * kLanes};
}

}  // namespace warpwright::ceiling::WARPWRIGHT_ISA
