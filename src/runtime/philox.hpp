// Counter-based random numbers: Philox4x32-10.
// Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
// A number is a pure function of (key, counter), so it depends neither on threads nor on the order of use.
// constexpr: for a GPU's kernels too.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace warpwright {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

// A stream of numbers for one purpose: keyed by a seed, with two 32-bit identifiers (step, tensor, …) in the
// counter and the element's 64-bit index in the rest.
class PhiloxStream {
 public:
  explicit PhiloxStream(std::uint64_t seed, std::uint32_t purpose, std::uint32_t step = 0)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        purpose_(purpose),
        step_(step) {}

  PhiloxCounter block(std::uint64_t index) const {
    return philox(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), purpose_, step_}, key_);
  }

  // Uniform in [0, 1): 53 bits.
  double uniform(std::uint64_t index) const {
    const PhiloxCounter r = block(index);
    const std::uint64_t bits = (std::uint64_t{r[0]} << 21) ^ (r[1] >> 11);
    return static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
  }

  // Standard normal by Box–Muller.
  double normal(std::uint64_t index) const {
    const PhiloxCounter r = block(index);
    const double u = (static_cast<double>(r[0]) + 0.5) * 0x1p-32;
    const double v = (static_cast<double>(r[1]) + 0.5) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

 private:
  PhiloxKey key_;
  std::uint32_t purpose_, step_;
};

}  // namespace warpwright
