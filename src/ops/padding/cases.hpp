// Masks and rows for padding, shared by test and bench.
#pragma once

#include <vector>

#include "ops/element.hpp"
#include "ops/padding/padding.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::padding {

enum class Form : std::uint8_t { front, behind, holes };  // the position of the ones in a row

struct Case {
  std::vector<std::int32_t> lengths;
  std::int64_t S, C;
  Form form = Form::front;
};

inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{{}, 7, 8},
                          {{0, 0}, 5, 3},
                          {{3, 2, 4}, 5, 33},
                          {{64, 1, 33, 0}, 64, 96},
                          {{100, 7}, 129, 768, Form::behind},
                          {{40, 0, 90}, 129, 20, Form::holes},
                          {{1000, 3}, 1024, 4}};
  cases.push_back({std::vector<std::int32_t>(70, 2), 3, 16});
  cases.push_back({std::vector<std::int32_t>(1100, 1), 2, 1});  // more sequences than a block has threads
  return cases;
}

inline std::vector<Case> bench_cases() {
  return {{std::vector<std::int32_t>(16, 150), 256, 768}, {std::vector<std::int32_t>(64, 600), 1024, 768}};
}

// Puts a value into a mask of any dtype.
inline void set_mask(const Tensor& mask, std::int64_t at, float value) {
  if (mask.dtype == DType::u8) mask.as<std::uint8_t>()[at] = static_cast<std::uint8_t>(value);
  if (mask.dtype == DType::i32) mask.as<std::int32_t>()[at] = static_cast<std::int32_t>(value);
  if (mask.dtype == DType::i64) mask.as<std::int64_t>()[at] = static_cast<std::int64_t>(value);
  if (is_floating(mask.dtype)) Elements(mask).set(at, static_cast<double>(value));
}

// A mask whose row b has lengths[b] ones.
inline Tensor make_mask(const Case& c, DType dtype, testing::Fixture& f) {
  std::vector<std::int32_t> ones;
  for (const std::int32_t length : c.lengths) {
    for (std::int64_t s = 0; s < c.S; ++s) {
      const bool one = c.form == Form::front    ? s < length
                       : c.form == Form::behind ? s >= c.S - length
                                                : s * length / c.S != (s + 1) * length / c.S;
      ones.push_back(one);
    }
  }
  const Tensor mask = f.output(dtype, {static_cast<std::int64_t>(c.lengths.size()), c.S});
  for (std::size_t i = 0; i < ones.size(); ++i) {
    set_mask(mask, static_cast<std::int64_t>(i), static_cast<float>(ones[i]));
  }
  return mask;
}

inline PaddingLengths make_lengths(const Case& c, DType dtype, testing::Fixture& f) {
  const auto B = static_cast<std::int64_t>(c.lengths.size());
  PaddingLengths a;
  a.mask = make_mask(c, dtype, f);
  a.cu_seqlens = f.output(DType::i32, {B + 1});
  a.indices = f.output(DType::i32, {B * c.S});
  a.odd = f.output(DType::i64, {1});
  return a;
}

// Rows of Lk elements, with `gap` more between them in the mask, and 5 more in the bytes.
inline PaddingPairs make_pairs(std::int64_t B, std::int64_t Lq, std::int64_t Lk, std::int64_t gap,
                               DType dtype, testing::Fixture& f) {
  const Tensor numbers = f.random_integers({B, Lq, Lk + gap}, 0, 2),
               mask = f.output(dtype, {B, Lq, Lk + gap});
  for (std::int64_t i = 0; f.with_data() && i < mask.elements(); ++i) {
    set_mask(mask, i, static_cast<float>(numbers.as<std::int32_t>()[i]));
  }
  return {.mask = mask.slice(2, 0, Lk),
          .out = f.output(DType::u8, {B, Lq, Lk + 5}).slice(2, 0, Lk),
          .odd = f.output(DType::i64, {1})};
}

// The outputs of padding.lengths for the case's mask.
struct Places {
  Tensor cu_seqlens, indices;
  std::int64_t N = 0;
};
inline Places make_places(const Case& c, testing::Fixture& f) {
  testing::Fixture own(0);
  const Tensor mask = make_mask(c, DType::i32, own);
  std::vector<std::int32_t> bounds{0}, indices;
  for (const std::int32_t length : c.lengths) bounds.push_back(bounds.back() + length);
  for (std::int64_t i = 0; i < mask.elements(); ++i) {
    if (mask.as<std::int32_t>()[i] != 0) indices.push_back(static_cast<std::int32_t>(i));
  }
  indices.resize(static_cast<std::size_t>(mask.elements()), -1);
  return {f.integers(bounds), f.integers(indices), bounds.back()};
}

inline PaddingPack make_pack(const Case& c, DType dtype, testing::Fixture& f) {
  const Places places = make_places(c, f);
  PaddingPack a;
  a.x = f.random(dtype, {static_cast<std::int64_t>(c.lengths.size()) * c.S, c.C});
  a.indices = places.indices.slice(0, 0, places.N);
  a.out = f.output(dtype, {places.N, c.C});
  return a;
}

inline PaddingUnpack make_unpack(const Case& c, DType dtype, testing::Fixture& f) {
  const Places places = make_places(c, f);
  PaddingUnpack a;
  a.x = f.random(dtype, {places.N, c.C});
  a.cu_seqlens = places.cu_seqlens;
  a.indices = places.indices;
  a.out = f.output(dtype, {static_cast<std::int64_t>(c.lengths.size()), c.S, c.C});
  return a;
}

}  // namespace warpwright::ops::padding
