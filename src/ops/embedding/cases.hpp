// Shapes of the embedding, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/embedding/embedding.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::embedding {

struct Case {
  std::int64_t N, C, V, P;  // P = 0: no positions
  bool text = false;        // true: log-uniform tokens, close to Zipf's law as in a text; false: uniform
};

// Every length of a vector's tail, no tokens, one token that all n share, tables with more and with fewer
// rows than tokens, and channels that the threads cannot divide evenly. For GPUs: tokens that make up much of
// the batch, in rows of one slice and of several, and row numbers above 16 bits.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 8, 5, 4},       {257, 96, 1, 37},   {64, 768, 1021, 64}, {37, 1000, 11, 37},
                          {300, 33, 50, 300}, {2048, 32, 7, 128}, {5000, 40, 2, 3},    {20000, 4, 1, 1},
                          {90, 3, 70003, 5},  {1500, 300, 2, 3},  {1501, 261, 2, 3}};
  for (std::int64_t C = 1; C <= 70; ++C) cases.push_back({1 + C % 9, C, 13, 5});
  for (const std::int64_t C : {1, 7, 32, 96, 261}) cases.push_back({1 + C * 5, C, 1 + C / 4, 0});
  return cases;
}

// GPT-2 124M at B·T = 256 and 4096.
inline std::vector<Case> bench_cases() {
  return {{256, 768, 50304, 1024}, {4096, 768, 50304, 1024}};
}

// GPT-2 124M at B·T = 65,536.
inline std::vector<Case> gpu_bench_cases() {
  return {{65536, 768, 50257, 1024}, {65536, 768, 50257, 1024, true}};
}

inline Tensor make_tokens(const Case& c, testing::Fixture& f) {
  if (!c.text) return f.random_integers({c.N}, 0, static_cast<std::int32_t>(c.V));
  constexpr std::int32_t kSteps = 1 << 30;
  const Tensor tokens = f.random_integers({c.N}, 0, kSteps);
  for (std::int64_t n = 0; n < c.N; ++n) {
    std::int32_t& token = tokens.as<std::int32_t>()[n];
    token = static_cast<std::int32_t>(std::pow(c.V, static_cast<double>(token) / kSteps)) - 1;
  }
  return tokens;
}

// Sequences of P tokens, one after the other; none for P = 0.
inline Tensor make_positions(const Case& c, testing::Fixture& f) {
  if (c.P == 0) return {};
  std::vector<std::int32_t> positions;
  for (std::int64_t n = 0; n < c.N; ++n) positions.push_back(static_cast<std::int32_t>(n % c.P));
  return f.integers(positions);
}

inline EmbeddingForward make_forward(const Case& c, DType dtype, testing::Fixture& f) {
  EmbeddingForward a;
  a.tokens = make_tokens(c, f);
  a.positions = make_positions(c, f);
  a.wte = f.random(dtype, {c.V, c.C});
  if (c.P > 0) a.wpe = f.random(dtype, {c.P, c.C});
  a.out = f.output(dtype, {c.N, c.C});
  return a;
}

inline EmbeddingBackward make_backward(const Case& c, DType dtype, Store store, testing::Fixture& f) {
  EmbeddingBackward a;
  a.tokens = make_tokens(c, f);
  a.positions = make_positions(c, f);
  a.dout = f.random(dtype, {c.N, c.C});
  a.dwte = f.output(accumulation_dtype(dtype), {c.V, c.C}, store);
  if (c.P > 0) a.dwpe = f.output(accumulation_dtype(dtype), {c.P, c.C}, store);
  a.dwte_store = a.dwpe_store = store;
  return a;
}

}  // namespace warpwright::ops::embedding
