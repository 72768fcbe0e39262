// Sizes of QK norm, shared by test and bench.
#pragma once

#include <vector>

#include "ops/head_norm/head_norm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::head_norm {

// The heads' places: one after the other, parts of the rows of a qkv product, or rows within a head.
enum class Place : std::uint8_t { contiguous, product, by_head };
inline constexpr Place kPlaces[] = {Place::contiguous, Place::product, Place::by_head};

struct Case {
  std::int64_t N, q_heads, k_heads, HS;
  Place place = Place::contiguous;
  bool in_place = false;

  std::int64_t heads() const { return q_heads + k_heads; }
};

// No rows and one row, heads of real models, more heads than a GPU's block takes at a time, more rows than
// the CPU has parts, and odd sizes, in every place. Then every length of a vector's tail, and the longest
// heads.
inline std::vector<Case> test_cases() {
  const std::vector<Case> sizes{{0, 2, 1, 64},    {1, 1, 1, 16},  {300, 2, 1, 32}, {37, 16, 8, 128},
                                {2100, 1, 1, 12}, {5, 3, 1, 256}, {33, 4, 1, 96},  {2, 70, 7, 40},
                                {7, 5, 3, 33},    {9, 3, 2, 1},   {3, 2, 2, 250}};
  std::vector<Case> cases;
  for (const Case& c : sizes) {
    for (const Place place : kPlaces) {
      for (const bool in_place : {false, true})
        cases.push_back({c.N, c.q_heads, c.k_heads, c.HS, place, in_place});
    }
  }
  for (std::int64_t i = 0; i < 40; ++i) {
    cases.push_back({3, 1 + i % 6, 1 + i % 4, 2 + i, kPlaces[i % 3], i % 2 == 1});
    cases.push_back({2, 1 + i % 5, 1 + i % 3, 256 - i, kPlaces[i % 3], i % 2 == 0});
  }
  return cases;
}

// The heads of q and k in the qkv product of Qwen3-0.6B and 1.7B, and of Qwen3-8B, one sequence each.
inline std::vector<Case> bench_cases(std::int64_t sequences = 1) {
  return {{sequences * 2048, 16, 8, 128, Place::product}, {sequences * 2048, 32, 8, 128, Place::product}};
}
// The same models with the batches of a GPU's training step.
inline std::vector<Case> gpu_bench_cases() {
  return bench_cases(16);
}

// The heads (N, NH, HS) of a case in a tensor of whole rows.
inline Tensor heads_in(const Tensor& rows, const Case& c) {
  if (c.place == Place::contiguous) return rows;
  Tensor heads = rows;
  if (c.place == Place::product) return heads.slice(1, 0, c.heads());
  heads.shape = {c.N, c.heads(), c.HS};
  heads.strides = {c.HS, c.N * c.HS, 1};
  return heads;
}
// A product also has the heads of v.
inline Shape rows_of(const Case& c) {
  return {c.N, c.heads() + (c.place == Place::product ? c.k_heads : 0), c.HS};
}

inline HeadNormForward make_forward(const Case& c, DType dtype, testing::Fixture& f, bool rstd = true) {
  const DType wide = accumulation_dtype(dtype);
  HeadNormForward a;
  a.x = heads_in(f.random(dtype, rows_of(c)), c);
  a.q_weight = f.random(wide, {c.HS}, 0.3, 1);
  a.k_weight = f.random(wide, {c.HS}, 0.3, 1);
  a.out = c.in_place ? a.x : heads_in(f.output(dtype, rows_of(c)), c);
  if (rstd) a.rstd = f.output(wide, {c.N, c.heads()});
  a.q_heads = c.q_heads;
  return a;
}

// rstd is any number near 1: the backward takes what it is given.
inline HeadNormBackward make_backward(const Case& c, DType dtype, testing::Fixture& f,
                                      Store store = Store::assign) {
  const DType wide = accumulation_dtype(dtype);
  HeadNormBackward a;
  a.dout = heads_in(f.random(dtype, rows_of(c)), c);
  a.x = heads_in(f.random(dtype, rows_of(c)), c);
  a.q_weight = f.random(wide, {c.HS}, 0.3, 1);
  a.k_weight = f.random(wide, {c.HS}, 0.3, 1);
  a.rstd = f.random(wide, {c.N, c.heads()}, 0.1, 1);
  a.dx = c.in_place ? a.dout : heads_in(f.output(dtype, rows_of(c)), c);
  a.dq_weight = f.output(wide, {c.HS}, store);
  a.dk_weight = f.output(wide, {c.HS}, store);
  a.q_heads = c.q_heads;
  a.dweights_store = store;
  return a;
}

}  // namespace warpwright::ops::head_norm
