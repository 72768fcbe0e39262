// Shapes of the matrix products, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/matmul/matmul.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::matmul {

struct Case {
  std::int64_t M, N, K;
  std::int64_t padding = 0;  // elements between the rows of the activations
};

// Every tile's edges and their neighbours, few rows, several chunks of the depth in each of the three
// products, more rows and columns than a block holds, empty products, 257 × 768, and few rows of great depth.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{
      {0, 5, 3},       {5, 0, 3},         {5, 3, 0},        {0, 16, 8},        {16, 0, 8},
      {16, 8, 0},      {257, 768, 96},    {1, 1000, 768},   {16, 67, 131, 5},  {17, 1021, 37, 3},
      {37, 96, 768},   {33, 2, 1201, 1},  {2, 901, 33},     {1100, 49, 65, 7}, {40, 1300, 390, 2},
      {513, 25, 40},   {770, 50, 430},    {64, 1100, 33},   {31, 400, 1100},   {129, 264, 200},
      {1, 8, 8},       {300, 520, 72, 8}, {8, 1032, 136},   {1000, 136, 64},   {7, 136, 1544, 8},
      {9, 40, 264},    {24, 72, 776, 8},  {48, 264, 520},   {64, 50, 2056},    {63, 1031, 8},
      {12, 136, 2056}, {8, 24, 8200},     {30, 40, 2120, 8}};  // clusters of four and of eight blocks
  for (const std::int64_t edge : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 23, 25, 31, 32, 33, 47, 48, 49, 63, 65}) {
    cases.push_back({edge, 50, 34});
    cases.push_back({34, edge, 50, 1});
    cases.push_back({50, 34, edge, 3});
  }
  return cases;
}

// GPT-2 124M's layers (qkv, attention projection, feed-forward up and down, LM head) for this many tokens:
// B·T, or 1 in generation.
inline std::vector<Case> bench_cases(std::int64_t tokens) {
  return {{tokens, 2304, 768},
          {tokens, 768, 768},
          {tokens, 3072, 768},
          {tokens, 768, 3072},
          {tokens, 50304, 768}};
}

// A matrix whose rows are `padding` elements apart.
inline Tensor rows_of(const Tensor& padded, std::int64_t cols) {
  return padded.slice(1, 0, cols);
}

// The steps after bias and activation. widened: the result of a 16-bit product is fp32.
struct Finishing {
  bool residual = false;
  float scale = 1;
  bool widened = false;
};
inline constexpr Finishing kFinishings[] = {
    {true, 1}, {false, -0.75f}, {true, 0.5f}, {false, 1, true}, {true, 1.5f, true}};

inline DType result_dtype(DType factors, bool widened) {
  return widened && size_of(factors) == 2 ? DType::f32 : factors;
}

inline MatmulForward make_forward(const Case& c, DType dtype, bool bias, Activation activation,
                                  testing::Fixture& f, const Finishing& finishing = {}) {
  MatmulForward a;
  a.x = rows_of(f.random(dtype, {c.M, c.K + c.padding}), c.K);
  // Before an activation, the sums are about 1, as in a model. Few larger sums would lie where the activation
  // bends.
  const double scale = activation == Activation::none ? 1 : 1 / std::sqrt(static_cast<double>(c.K));
  a.weight = f.random(dtype, {c.N, c.K}, scale);
  if (bias) a.bias = f.random(dtype, {c.N});
  const DType result = result_dtype(dtype, finishing.widened);
  a.out = rows_of(f.output(result, {c.M, c.N + c.padding}), c.N);
  if (finishing.residual) a.residual = rows_of(f.random(result, {c.M, c.N + 3 * c.padding}), c.N);
  a.scale = finishing.scale;
  if (activation != Activation::none) a.preact = rows_of(f.output(dtype, {c.M, c.N + 2 * c.padding}), c.N);
  a.activation = activation;
  return a;
}

inline MatmulDx make_dx(const Case& c, DType dtype, Activation activation, testing::Fixture& f,
                        bool widened = false) {
  MatmulDx a;
  a.dout = rows_of(f.random(dtype, {c.M, c.N + c.padding}), c.N);
  a.weight = f.random(dtype, {c.N, c.K});
  if (activation != Activation::none) a.preact = rows_of(f.random(dtype, {c.M, c.K + 2 * c.padding}), c.K);
  a.dx = rows_of(f.output(result_dtype(dtype, widened), {c.M, c.K + c.padding}), c.K);
  a.activation = activation;
  return a;
}

inline MatmulDw make_dw(const Case& c, DType dtype, bool bias, Store store, testing::Fixture& f) {
  MatmulDw a;
  a.dout = rows_of(f.random(dtype, {c.M, c.N + c.padding}), c.N);
  a.x = rows_of(f.random(dtype, {c.M, c.K + 2 * c.padding}), c.K);
  a.dweight = f.output(accumulation_dtype(dtype), {c.N, c.K}, store);
  if (bias) a.dbias = f.output(accumulation_dtype(dtype), {c.N}, store);
  a.store = store;
  return a;
}

}  // namespace warpwright::ops::matmul
