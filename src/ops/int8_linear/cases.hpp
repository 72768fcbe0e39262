// Sizes of the int8 linear layer, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/element.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::int8 {

struct Case {
  std::int64_t M, N, K;
};

// No elements, every remainder of rows, panels and steps, more rows than a block has, and layers of real
// encoders.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 5, 7},       {5, 0, 7},       {5, 7, 0},        {1, 1, 1},     {1, 384, 1536},
                          {33, 31, 63},    {16, 32, 64},    {17, 33, 65},     {64, 64, 128}, {1100, 96, 64},
                          {70, 1536, 384}, {600, 40, 3072}, {130, 2304, 768}, {2, 70, 10000}};
  for (std::int64_t m = 2; m <= 40; m += 3) cases.push_back({m, 3 * m, 5 * m + 1});
  return cases;
}

// The four layers of MiniLM, BERT-base and GPT-2 for one row, for a short text and for a batch.
inline std::vector<Case> bench_cases() {
  std::vector<Case> cases;
  for (const std::int64_t M : {1, 32, 2048}) {
    for (const std::int64_t H : {384, 768}) {
      for (const auto& [N, K] : {std::pair(3 * H, H), {H, H}, {4 * H, H}, {H, 4 * H}})
        cases.push_back({M, N, K});
    }
  }
  return cases;
}

inline Int8Linear make_args(const Case& c, DType dtype, testing::Fixture& f,
                            Activation activation = Activation::none, bool bias = true) {
  return {.x = f.random(dtype, {c.M, c.K}),
          .weight = f.random(dtype, {c.N, c.K}, 0.05),
          .factors = {},
          .bias = bias ? f.random(dtype, {c.N}) : Tensor(),
          .out = f.output(dtype, {c.M, c.N}),
          .activation = activation};
}

// The same with columns of x that differ in size by up to a factor of 50, and with factors that even them.
inline Int8Linear with_factors(Int8Linear args, testing::Fixture& f) {
  const std::int64_t K = args.x.shape[1];
  args.factors = f.random(accumulation_dtype(args.x.dtype), {K}, 0.2, 1);
  auto* factors = args.factors.as<float>();
  for (std::int64_t k = 0; k < K; ++k) {
    const float size = std::abs(factors[k]) + 0.01f + (k % 40 == 7 ? 50.0f : 0.0f);
    factors[k] = 1 / size;
    for (std::int64_t m = 0; m < args.x.shape[0]; ++m) {
      const std::int64_t at = m * args.x.strides[0] + k;
      store_element(args.x, at, load_element(args.x, at) * static_cast<double>(size));
    }
  }
  return args;
}

// The same with a residual whose rows are strided.
inline Int8Linear with_residual(Int8Linear args, testing::Fixture& f) {
  const std::int64_t M = args.out.shape[0], N = args.out.shape[1];
  args.residual = f.random(args.out.dtype, {M, N + 3}).slice(1, 1, N);
  return args;
}

// The same with the weight packed.
inline Int8Linear with_packed(Int8Linear args, const Context& context, testing::Fixture& f) {
  args.packed = f.output(DType::u8, {int8_packed_bytes(args.weight.shape[0], args.weight.shape[1])});
  if (f.with_data()) int8_pack(context, args.weight, args.factors, args.packed);
  args.weight.data = nullptr;
  return args;
}

}  // namespace warpwright::ops::int8
