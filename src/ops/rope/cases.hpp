// Sizes of the rotary position embedding, shared by test and bench.
#pragma once

#include <vector>

#include "ops/rope/angles.hpp"
#include "ops/rope/rope.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::rope {

// The heads' places: one after the other, parts of the rows of a qkv product, or rows within a head.
enum class Place : std::uint8_t { contiguous, product, by_head };

struct Case {
  std::int64_t N, NH, HS, R, P = 64;
  Place place = Place::contiguous;
  bool in_place = false;
};

constexpr Place kPlaces[] = {Place::contiguous, Place::product, Place::by_head};

// No rows and one row, heads of real models, partial rotations (GPT-NeoX-20B 24 of 96, Phi-2 32 of 80), odd
// sizes, and rows of more work than a GPU's block has threads, in every place. Then every length of a
// vector's tail.
inline std::vector<Case> test_cases() {
  const std::vector<Case> sizes{{0, 4, 64, 64},   {1, 1, 16, 16},   {1000, 2, 32, 32}, {37, 9, 128, 128},
                                {5, 2, 256, 256}, {33, 5, 96, 24},  {17, 3, 80, 32},   {7, 4, 33, 30},
                                {3, 1, 17, 2},    {2, 70, 128, 64}, {1, 300, 64, 64},  {9, 2, 64, 62, 3}};
  std::vector<Case> cases;
  for (const Case& c : sizes) {
    for (const Place place : kPlaces) {
      for (const bool in_place : {false, true}) cases.push_back({c.N, c.NH, c.HS, c.R, c.P, place, in_place});
    }
  }
  for (std::int64_t i = 0; i < 72; ++i) {
    const std::int64_t HS = 16 + i, R = 2 + i / 2 * 2;
    cases.push_back({3, 1 + i % 6, HS, HS / 2 * 2, 9, kPlaces[i % 3], i % 2 == 1});
    cases.push_back({2, 1 + i % 5, 76, R, 5, kPlaces[i % 3], i % 2 == 1});
  }
  return cases;
}

// The heads of q and k in the qkv product of SmolLM2-135M, Qwen2.5-0.5B and Llama-3.2-1B, one sequence each.
inline std::vector<Case> bench_cases() {
  std::vector<Case> cases;
  for (const bool in_place : {false, true}) {
    cases.push_back({2048, 9 + 3, 64, 64, 2048, Place::product, in_place});
    cases.push_back({2048, 14 + 2, 64, 64, 2048, Place::product, in_place});
    cases.push_back({2048, 32 + 8, 64, 64, 2048, Place::product, in_place});
  }
  return cases;
}

// The same models with the batches of a GPU's training step, and Qwen3-8B, whose heads have 128 elements.
inline std::vector<Case> gpu_bench_cases() {
  std::vector<Case> cases;
  for (const bool in_place : {false, true}) {
    cases.push_back({16 * 2048, 9 + 3, 64, 64, 2048, Place::product, in_place});
    cases.push_back({16 * 2048, 14 + 2, 64, 64, 2048, Place::product, in_place});
    cases.push_back({16 * 2048, 32 + 8, 64, 64, 2048, Place::product, in_place});
    cases.push_back({16 * 2048, 32 + 8, 128, 128, 2048, Place::product, in_place});
  }
  return cases;
}

// The heads (N, NH, HS) of a case in a tensor of whole rows.
inline Tensor heads_in(const Tensor& rows, const Case& c) {
  if (c.place == Place::contiguous) return rows;
  Tensor heads = rows;
  if (c.place == Place::product) return heads.slice(1, 0, c.NH);
  heads.shape = {c.N, c.NH, c.HS};
  heads.strides = {c.HS, c.N * c.HS, 1};
  return heads;
}
// A product also has the heads of v, as many as a third of the others.
inline Shape rows_of(const Case& c) {
  return {c.N, c.place == Place::product ? c.NH + (c.NH + 2) / 3 : c.NH, c.HS};
}

// Sequences of P positions, one after the other; the first begins at 3.
inline Tensor make_positions(const Case& c, testing::Fixture& f) {
  std::vector<std::int32_t> positions;
  for (std::int64_t n = 0; n < c.N; ++n) positions.push_back(static_cast<std::int32_t>((n + 3) % c.P));
  return f.integers(positions);
}

template <class Args>
void make_tables(const Case& c, DType dtype, testing::Fixture& f, Args& args) {
  args.cos = f.output(accumulation_dtype(dtype), {c.P, c.R / 2});
  args.sin = f.output(accumulation_dtype(dtype), {c.P, c.R / 2});
  if (f.with_data()) write_rope_tables({.theta = 100, .R = c.R}, args.cos, args.sin);
  args.positions = make_positions(c, f);
  args.wrong = f.output(DType::i64, {1});  // −1: all its bits are 1
}

inline RopeForward make_forward(const Case& c, DType dtype, RopeLayout layout, testing::Fixture& f) {
  RopeForward a;
  a.x = heads_in(f.random(dtype, rows_of(c)), c);
  a.out = c.in_place ? a.x : heads_in(f.output(dtype, rows_of(c)), c);
  a.layout = layout;
  make_tables(c, dtype, f, a);
  return a;
}

inline RopeBackward make_backward(const Case& c, DType dtype, RopeLayout layout, testing::Fixture& f) {
  RopeBackward a;
  a.dout = heads_in(f.random(dtype, rows_of(c)), c);
  a.dx = c.in_place ? a.dout : heads_in(f.output(dtype, rows_of(c)), c);
  a.layout = layout;
  make_tables(c, dtype, f, a);
  return a;
}

}  // namespace warpwright::ops::rope
