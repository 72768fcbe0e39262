// Stochastic rounding to bf16 in vectors (ops/adamw/rounding.hpp), for kernels of an instruction set.
#pragma once

#include "ops/adamw/rounding.hpp"
#include "ops/cpu/elementwise.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

using namespace simd;

#if defined(__AVX512F__)
inline ivec times(ivec a, std::uint32_t b) {  // of the lower halves of 64-bit lanes
  return _mm512_mul_epu32(a, _mm512_set1_epi64(b));
}
inline ivec even_lanes(ivec a, ivec b) {  // a0 b0 a2 b2 …
  return _mm512_unpacklo_epi64(a, b);
}
inline ivec odd_lanes(ivec a, ivec b) {
  return _mm512_unpackhi_epi64(a, b);
}
#else
inline ivec times(ivec a, std::uint32_t b) {
  return _mm256_mul_epu32(a, _mm256_set1_epi64x(b));
}
inline ivec even_lanes(ivec a, ivec b) {
  return _mm256_unpacklo_epi64(a, b);
}
inline ivec odd_lanes(ivec a, ivec b) {
  return _mm256_unpackhi_epi64(a, b);
}
#endif

// Philox4x32-10 of kBlocks blocks at once, one in each 64-bit lane: 16 bits for each of
// kRandomElements · kBlocks elements. runtime/philox.hpp computes one block, but an ISA file must not
// instantiate its functions.
constexpr int kBlocks = kLanes / 2;
struct RandomBits {
  alignas(64) std::uint16_t halves[kRandomElements * kBlocks];
};

inline void draw(RandomBits& bits, const std::int32_t* random, std::uint32_t tensor, std::int64_t block) {
  using Lanes = std::uint64_t __attribute__((vector_size(sizeof(ivec))));
  // Even lanes hold the first blocks, because they are stored first. The upper halves are never read.
  Lanes c0{}, c1 = Lanes{} + tensor, c2 = Lanes{} + kRounding;
  Lanes c3 = Lanes{} + static_cast<std::uint32_t>(random[2]);
  for (int b = 0; b < kBlocks; ++b) c0[b] = static_cast<std::uint64_t>(b / 2 + b % 2 * (kBlocks / 2));
  c0 += static_cast<std::uint64_t>(block);
  std::uint32_t k0 = static_cast<std::uint32_t>(random[0]), k1 = static_cast<std::uint32_t>(random[1]);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const Lanes p0 = reinterpret_cast<Lanes>(times(reinterpret_cast<ivec>(c0), 0xD2511F53u));
    const Lanes p1 = reinterpret_cast<Lanes>(times(reinterpret_cast<ivec>(c2), 0xCD9E8D57u));
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0;
  }
  const ivec low = reinterpret_cast<ivec>((c0 & 0xffffffffu) | (c1 << 32));
  const ivec high = reinterpret_cast<ivec>((c2 & 0xffffffffu) | (c3 << 32));
  const ivec first = even_lanes(low, high), second = odd_lanes(low, high);
  __builtin_memcpy(bits.halves, &first, sizeof first);
  __builtin_memcpy(bits.halves + kRandomElements * kBlocks / 2, &second, sizeof second);
}

// The same as stochastically_rounded().
inline vec round_stochastically(vec w, const std::uint16_t* random) {
  using Words = std::uint32_t __attribute__((vector_size(sizeof(vec))));
  using Halves = std::uint16_t __attribute__((vector_size(sizeof(vec) / 2)));
  Halves halves;
  __builtin_memcpy(&halves, random, sizeof halves);
  const Words bits = reinterpret_cast<Words>(w);
  const Words rounded = (bits + __builtin_convertvector(halves, Words)) & 0xffff0000u;
  const Words beyond = reinterpret_cast<Words>((bits & 0x7fffffffu) > kLargestFinite);
  return reinterpret_cast<vec>((bits & beyond) | (rounded & ~beyond));
}

// The random bits of a tensor.
struct RandomStream {
  const std::int32_t* random;
  std::uint32_t tensor;
  std::int64_t first_block;  // of the tensor's first element
};

// Calls f(first, last, the random bits from `first` on) for parts of a tensor's elements [begin, end). begin
// is a multiple of kElementwiseBlock.
template <class F>
inline void with_random_bits(const RandomStream& stream, std::int64_t begin, std::int64_t end, const F& f) {
  constexpr std::int64_t kElements = kRandomElements * kBlocks;
  static_assert(kElementwiseBlock % kElements == 0);
  for (std::int64_t first = begin; first < end; first += kElements) {
    RandomBits bits;
    draw(bits, stream.random, stream.tensor, stream.first_block + first / kRandomElements);
    f(first, end - first < kElements ? end : first + kElements, bits.halves);
  }
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels
