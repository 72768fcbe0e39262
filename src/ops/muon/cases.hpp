// Sizes of Muon's tensors, shared by test and bench.
#pragma once

#include <vector>

#include "ops/adamw/master_cases.hpp"
#include "ops/element.hpp"
#include "ops/muon/muon.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::muon {

struct Case {
  std::int64_t elements;
  std::int64_t skew = 0;  // elements by which each tensor misses a multiple of 16 bytes
};

// Every length of a vector's tail, no elements, sizes near multiples of the threads' blocks, and unaligned
// addresses.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0}, {16383}, {16384}, {16385}, {70001}, {5000, 1}, {3, 1}};
  for (std::int64_t elements = 1; elements <= 70; ++elements) cases.push_back({elements});
  return cases;
}

// Matrices of GPT-2 124M and 1558M.
inline std::vector<Case> bench_cases() {
  return {{768 * 768}, {3072 * 768}, {6400 * 1600}};
}

inline Tensor random(const Case& c, DType dtype, double deviation, testing::Fixture& f) {
  return f.random(dtype, {c.elements + c.skew}, deviation).slice(0, c.skew, c.elements);
}

inline Tensor scalars(DType dtype, double scale, testing::Fixture& f) {
  const Tensor scalars = f.random(dtype, {4});
  if (f.with_data()) {
    store_host_scalars(host_scalars_of(scalars), 1e-2, 0.9, 0.999, 3);
    store_element(gradient_scale_of(scalars), 0, scale);
  }
  return scalars;
}

inline MuonMomentum make_momentum(const Case& c, DType dtype, double scale, testing::Fixture& f) {
  return {.gradient = random(c, dtype, 0.1, f),
          .m = random(c, dtype, 0.1, f),
          .scalars = scalars(dtype, scale, f),
          .momentum = 0.95};
}

// out: its dtype.
inline MuonScale make_scale(const Case& c, DType out, bool with_norm, testing::Fixture& f) {
  const DType dtype = accumulation_dtype(out);
  return {.x = random(c, dtype, 1, f),
          .norm = with_norm ? f.random(dtype, {1}, 0, 2.5) : Tensor(),
          .out = f.output(out, {c.elements + c.skew}).slice(0, c.skew, c.elements),
          .factor = -1.5};
}

inline MuonUpdate make_update(const Case& c, DType dtype, bool masters, double scale, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(dtype);
  const bool narrow = dtype == DType::bf16;
  const auto remainders = [&] {
    return adamw_kernels::random_remainders({c.elements + c.skew}, f).slice(0, c.skew, c.elements);
  };
  return {.parameter = random(c, dtype, 1, f),
          .remainder = narrow && masters ? remainders() : Tensor(),
          .x = random(c, dtype, 0.02, f),
          .scalars = scalars(accumulation, scale, f),
          .random = narrow && !masters ? f.integers({1337, -7, 12}) : Tensor(),
          .factor = 20,
          .weight_decay = 0.1,
          .number = 5};
}

}  // namespace warpwright::ops::muon
