// Shapes of the embedding and its normalization, shared by test and bench.
#pragma once

#include <vector>

#include "ops/embedding_layernorm/embedding_layernorm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::embedding_layernorm {

struct Case {
  std::int64_t N, C, V, P;
  bool types = true;
  std::int32_t rows = -1;  // the count on the device; −1: none is given
};

// Every length of a vector's tail, no tokens, counts below, at and above N, and the widths of models. For
// GPUs: rows of every number of packs, and longer ones.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 8, 5, 4},           {257, 96, 50, 37},        {64, 768, 101, 64},
                          {37, 1000, 11, 37},     {33, 384, 90, 33, false}, {40, 384, 30, 20, true, 13},
                          {9, 64, 5, 9, true, 0}, {9, 64, 5, 9, true, 40},  {19, 1024, 100, 50},
                          {5, 4096, 7, 5},        {6, 1536, 9, 6, false, 4}};
  for (std::int64_t C = 1; C <= 34; ++C) cases.push_back({1 + C % 9, C, 13, 9, C % 2 == 0});
  return cases;
}

inline std::vector<Case> bench_cases() {
  return {{256, 384, 30522, 512}, {4096, 768, 30522, 512}};
}

inline EmbeddingLayerNormForward make_forward(const Case& c, DType dtype, testing::Fixture& f) {
  EmbeddingLayerNormForward a;
  a.tokens = f.random_integers({c.N}, 0, static_cast<std::int32_t>(c.V));
  a.positions = f.random_integers({c.N}, 0, static_cast<std::int32_t>(c.P));
  a.word = f.random(dtype, {c.V, c.C});
  a.position = f.random(dtype, {c.P, c.C});
  if (c.types) a.types = f.random_integers({c.N}, 0, 2);
  if (c.types) a.type = f.random(dtype, {2, c.C});
  a.weight = f.random(dtype, {c.C}, 0.5, 1);
  a.bias = f.random(dtype, {c.C});
  a.out = f.output(dtype, {c.N, c.C});
  if (c.rows >= 0) a.rows = f.integers({c.rows});
  return a;
}

}  // namespace warpwright::ops::embedding_layernorm
