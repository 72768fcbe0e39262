// Sets of parameters, shared by AdamW's test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/adamw/adamw.hpp"
#include "ops/adamw/master_cases.hpp"
#include "ops/element.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::adamw_kernels {

struct Case {
  std::vector<std::int64_t> sizes;  // of the tensors
  std::int64_t skew = 0;            // elements by which each misses a multiple of 16 bytes
  bool mixed = false;               // every second one fp32
  bool masters = true;              // of the bf16 tensors
};

// Every length of a vector's tail in one set, sizes around the threads' blocks, empty tensors, fewer blocks
// than threads, more tensors than one launch on a GPU takes, unaligned addresses, no tensors, and two dtypes.
inline std::vector<Case> test_cases() {
  Case tails;
  for (std::int64_t size = 0; size <= 70; ++size) tails.sizes.push_back(size);
  Case many;
  for (std::int64_t i = 0; i < 1300; ++i) many.sizes.push_back(20 + i % 7);
  return {tails,
          many,
          {{1}},
          {{16383, 1, 16384, 0, 16385, 40000}},
          {{100003, 7}},
          {{5000, 4, 3}, 1},
          {},
          {{7, 768, 70, 40000, 5}, 0, true}};
}

// A projection, and a layer of GPT-2 124M.
inline std::vector<Case> bench_cases() {
  return {{{768 * 768}},
          {{768, 768, 2304 * 768, 2304, 768 * 768, 768, 768, 768, 3072 * 768, 3072, 768 * 3072, 768}}};
}

// The state in the middle of a training: v ≥ 0, matrices of more than 64 elements decay.
inline AdamW make(const Case& c, DType dtype, double scale, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(dtype);
  AdamW a;
  for (const std::int64_t size : c.sizes) {
    const auto random = [&](DType of, double deviation) {
      return f.random(of, {size + c.skew}, deviation).slice(0, c.skew, size);
    };
    AdamWTensor t;
    const bool wide = c.mixed && dtype == DType::bf16 && a.tensors.size() % 2 == 1;
    t.parameter = random(wide ? DType::f32 : dtype, 1);
    if (t.parameter.dtype == DType::bf16 && c.masters) {
      t.remainder = random_remainders({size + c.skew}, f).slice(0, c.skew, size);
    }
    t.gradient = random(accumulation, 0.1);
    t.m = random(accumulation, 0.1);
    t.v = random(accumulation, 0.1);
#pragma omp parallel for
    for (std::int64_t i = 0; i < (f.with_data() ? size : 0); ++i) {
      store_element(t.v, i, std::abs(load_element(t.v, i)));
    }
    t.weight_decay = size > 64 ? 0.1 : 0;
    t.number = static_cast<std::uint32_t>(a.tensors.size());
    a.tensors.push_back(t);
  }
  if (!c.masters) a.random = f.integers({1337, -7, 12});
  a.scalars = f.random(accumulation, {4});
  if (f.with_data()) {
    store_host_scalars(host_scalars_of(a.scalars), 1e-2, 0.9, 0.999, 3);
    store_element(gradient_scale_of(a.scalars), 0, scale);
  }
  return a;
}

}  // namespace warpwright::ops::adamw_kernels
