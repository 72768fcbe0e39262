// Shapes of small encoders, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/encoder_layers/encoder_layers.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::encoder_layers {

struct Case {
  std::int64_t H, heads, I, layers;
  std::vector<std::int32_t> lengths;
  std::int64_t spare = 0;  // rows, and empty sequences, behind those of the lengths
  Activation activation = Activation::gelu_erf;
};

// Heads of both sizes; one row, rows on and beside the edges of tiles; texts without tokens; every
// activation.
inline std::vector<Case> test_cases() {
  return {{128, 2, 256, 1, {23}},
          {128, 4, 256, 2, {1}},
          {128, 2, 192, 2, {16, 0, 17, 31}, 3},
          {192, 3, 320, 1, {32}, 32},
          {256, 4, 512, 2, {5, 60}, 0, Activation::gelu_tanh},
          {256, 8, 1024, 1, {33}, 1, Activation::relu},
          {384, 12, 448, 1, {100, 1, 1}, 2},
          {128, 2, 64, 3, {129, 0, 127}},
          {64, 1, 64, 1, {0}, 1}};
}

inline std::vector<Case> bench_cases() {
  return {{768, 12, 3072, 12, {23}}, {768, 12, 3072, 12, {227}}, {384, 12, 1536, 6, {23}}};
}

// Weights so small that states stay near 1 through the layers.
inline EncoderLayersForward make_forward(const Case& c, DType dtype, testing::Fixture& f) {
  std::vector<std::int32_t> bounds{0};
  for (const std::int32_t length : c.lengths) bounds.push_back(bounds.back() + length);
  const std::int64_t rows = bounds.back();
  for (std::int64_t i = 0; i < c.spare; ++i) bounds.push_back(bounds.back());
  EncoderLayersForward a;
  const auto matrix = [&](std::int64_t to, std::int64_t from) {
    return f.random(dtype, {to, from}, 1 / std::sqrt(static_cast<double>(from)));
  };
  const auto vector = [&](std::int64_t to, double mean) { return f.random(dtype, {to}, 0.1, mean); };
  for (std::int64_t l = 0; l < c.layers; ++l) {
    EncoderLayer layer;
    layer.qkv_weight = matrix(3 * c.H, c.H), layer.qkv_bias = vector(3 * c.H, 0);
    layer.proj_weight = matrix(c.H, c.H), layer.proj_bias = vector(c.H, 0);
    layer.attnorm_weight = vector(c.H, 1), layer.attnorm_bias = vector(c.H, 0);
    layer.fc_weight = matrix(c.I, c.H), layer.fc_bias = vector(c.I, 0);
    layer.fcproj_weight = matrix(c.H, c.I), layer.fcproj_bias = vector(c.H, 0);
    layer.outnorm_weight = vector(c.H, 1), layer.outnorm_bias = vector(c.H, 0);
    a.layers.push_back(layer);
  }
  a.hidden = f.random(dtype, {rows + c.spare, c.H});
  a.cu_seqlens = f.integers(bounds);
  a.rows = f.integers({static_cast<std::int32_t>(rows)});
  a.out = f.output(dtype, {rows + c.spare, c.H});
  a.heads = c.heads;
  a.activation = c.activation;
  return a;
}

}  // namespace warpwright::ops::encoder_layers
