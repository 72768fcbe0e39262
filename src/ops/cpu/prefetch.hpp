// Prefetches into the second-level cache.
#pragma once

#include <cstdint>

namespace warpwright::ops::simd {
namespace {

// Prefetches a row that will be read soon. The instruction is volatile, since g++ drops calls of functions
// that only prefetch.
template <class T>
inline void prefetch_row(const T* row, std::int64_t elements) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < elements; i += kLine) asm volatile("prefetcht1 %0" : : "m"(row[i]));
}

}  // namespace
}  // namespace warpwright::ops::simd
