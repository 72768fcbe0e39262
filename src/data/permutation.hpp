// A seeded permutation of 0 … size-1, computed element by element without storing it.
//
// A balanced Feistel network over the smallest even number of bits that holds size - 1. Philox is its round
// function. An element that falls outside the range is encrypted again until it falls inside (cycle walking,
// under four rounds on average). Source: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
// CT-RSA 2002.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/philox.hpp"

namespace warpwright {

class Permutation {
 public:
  // size: 1 to 2^62. Each (seed, purpose, epoch) gives a different order.
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint32_t purpose, std::uint32_t epoch = 0)
      : size_(size), half_bits_((std::bit_width(size - 1) + 1) / 2), random_(seed, purpose, epoch) {}

  std::uint64_t operator()(std::uint64_t index) const {
    do index = encrypt(index);
    while (index >= size_);
    return index;
  }

 private:
  static constexpr std::uint64_t kRounds = 8;

  std::uint64_t encrypt(std::uint64_t index) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (random_.block(round << 32 | right)[0] & mask);
      left = right;
      right = mixed;
    }
    return left << half_bits_ | right;
  }

  std::uint64_t size_;
  int half_bits_;
  PhiloxStream random_;
};

}  // namespace warpwright
