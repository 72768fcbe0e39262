// Masters (ops/adamw/master.hpp) in vectors, for kernels of an instruction set.
#pragma once

#include <cstdint>

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

using namespace simd;

using Bits = std::uint32_t __attribute__((vector_size(sizeof(vec))));
using SignedBits = std::int32_t __attribute__((vector_size(sizeof(vec))));
using Remainders = std::int16_t __attribute__((vector_size(sizeof(vec) / 2)));

// The first n lanes.
inline vec load_masters(const bf16* parameter, const std::int16_t* remainder, int n) {
  Remainders remainders{};
  if (n == kLanes) {
    __builtin_memcpy(&remainders, remainder, sizeof remainders);
  } else {
    __builtin_memcpy(&remainders, remainder, static_cast<std::size_t>(n) * sizeof *remainder);
  }
  const SignedBits rest = __builtin_convertvector(remainders, SignedBits);
  return reinterpret_cast<vec>(reinterpret_cast<Bits>(load_lanes(parameter, n)) +
                               reinterpret_cast<Bits>(rest));
}

inline void store_masters(bf16* parameter, std::int16_t* remainder, vec masters, int n) {
  store_lanes(parameter, masters, n);
  SignedBits rest = reinterpret_cast<SignedBits>(reinterpret_cast<Bits>(masters) -
                                                 reinterpret_cast<Bits>(load_lanes(parameter, n)));
  const SignedBits least = SignedBits{} + INT16_MIN, most = SignedBits{} + INT16_MAX;
  rest = rest < least ? least : rest;
  rest = rest > most ? most : rest;
  const Remainders remainders = __builtin_convertvector(rest, Remainders);
  if (n == kLanes) {
    __builtin_memcpy(remainder, &remainders, sizeof remainders);
  } else {
    __builtin_memcpy(remainder, &remainders, static_cast<std::size_t>(n) * sizeof *remainder);
  }
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels
