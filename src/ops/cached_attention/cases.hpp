// Caches and batches for the operations on them, shared by test and bench.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cached_attention/cached_attention.hpp"
#include "ops/element.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::cached {

// A sequence has `queries` of its `keys`.
struct Lengths {
  std::int32_t queries, keys;
};

struct Case {
  std::vector<Lengths> sequences;
  std::int64_t NH, KH, HS, block_size;
  std::int64_t window = 0;
  std::int64_t behind = 0;  // rows of q that belong to no sequence
};

inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{{}, 2, 1, 16, 16},
                          {{{0, 0}, {0, 5}}, 3, 3, 8, 4},
                          {{{1, 1}}, 1, 1, 64, 16},
                          {{{1, 1000}, {1, 15}, {1, 16}, {1, 17}, {0, 0}, {1, 1}}, 12, 12, 64, 16},
                          {{{9, 300}, {1, 64}, {3, 3}, {5, 65}}, 6, 2, 64, 16, 0, 3},
                          {{{2, 257}, {1, 129}}, 8, 1, 128, 64},
                          {{{1, 513}, {4, 20}}, 4, 2, 256, 16},
                          {{{7, 200}, {1, 40}, {1, 500}}, 4, 4, 80, 16, 33},
                          {{{3, 77}, {1, 512}}, 2, 2, 96, 16, 1},
                          {{{1, 90}, {2, 70}}, 5, 5, 40, 1},
                          // As many queries as sequences and more than two splits.
                          {{{1, 700}, {1, 300}}, 6, 2, 64, 16, 200},
                          {{{1, 900}}, 5, 1, 80, 16},
                          {{{1, 600}, {1, 40}, {0, 0}, {0, 0}}, 4, 2, 96, 16, 0, 2}};
  for (std::int64_t HS = 1; HS <= 34; ++HS) {
    const auto keys = static_cast<std::int32_t>(3 * HS);
    cases.push_back({{{2, keys}, {1, 1}}, 2, 1, HS, 5});
  }
  return cases;
}

// 512 sequences, and one, of up to 1,024 tokens of GPT-2 124M; grouped queries of 128.
inline std::vector<Case> bench_cases() {
  return {{std::vector<Lengths>(512, {1, 1024}), 12, 12, 64, 16},
          {std::vector<Lengths>(64, {1, 256}), 12, 12, 64, 16},
          {{{1, 1024}}, 12, 12, 64, 16},
          {std::vector<Lengths>(64, {1, 2048}), 32, 8, 128, 16},
          {{{1, 32768}}, 32, 8, 128, 16}};
}

// Puts NaN into the places that no key has, or, if keys are appended, into theirs.
inline void spoil_places(const CachedAttention& a) {
  const std::int64_t KH = a.key_cache.shape[1], block_size = a.key_cache.shape[2], HS = a.key_cache.shape[3];
  std::vector<bool> kept(static_cast<std::size_t>(a.key_cache.shape[0] * block_size), static_cast<bool>(a.k));
  for (std::int64_t s = 0; s < a.block_table.shape[0]; ++s) {
    const auto* table = a.block_table.as<std::int32_t>() + s * a.block_table.shape[1];
    const auto* bounds = a.cu_seqlens.as<std::int32_t>() + s;
    const std::int32_t keys = a.lengths.as<std::int32_t>()[s], earlier = keys - (bounds[1] - bounds[0]);
    for (std::int64_t j = 0; j < keys; ++j) {
      kept[static_cast<std::size_t>(table[j / block_size] * block_size + j % block_size)] =
          !a.k || j < earlier;
    }
  }
  for (std::size_t place = 0; place < kept.size(); ++place) {
    const std::int64_t block = static_cast<std::int64_t>(place) / block_size,
                       inside = static_cast<std::int64_t>(place) % block_size;
    for (std::int64_t i = 0; !kept[place] && i < KH * HS; ++i) {
      for (const Tensor& cache : {a.key_cache, a.value_cache}) {
        store_element(cache, ((block * KH + i / HS) * block_size + inside) * HS + i % HS,
                      std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
}

// The blocks of the sequences are shuffled. Places that no key has hold NaN. If keys are appended, the cache
// is a result, which cannot be compared if it has NaN, so then only their places do.
inline CachedAttention make_attention(const Case& c, DType dtype, testing::Fixture& f, bool appends = false) {
  const auto blocks_of = [&](std::int32_t keys) { return (keys + c.block_size - 1) / c.block_size; };
  std::vector<std::int32_t> bounds{0}, lengths;
  std::int64_t blocks = 1, most = 1;  // block 0 is nobody's
  for (const Lengths& s : c.sequences) {
    bounds.push_back(bounds.back() + s.queries);
    lengths.push_back(s.keys);
    blocks += blocks_of(s.keys);
    most = std::max<std::int64_t>(most, blocks_of(s.keys));
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(blocks - 1));
  std::iota(order.begin(), order.end(), 1);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  std::vector<std::int32_t> table;
  auto next = order.begin();
  for (const Lengths& s : c.sequences) {
    for (std::int64_t b = 0; b < most; ++b) table.push_back(b < blocks_of(s.keys) ? *next++ : -1);
  }
  const auto S = static_cast<std::int64_t>(c.sequences.size());
  CachedAttention a;
  // q is a part of a product that has keys and values as well.
  const Tensor qkv = f.random(dtype, {bounds.back() + c.behind, c.NH + 2 * c.KH, c.HS});
  a.q = qkv.slice(1, 0, c.NH);
  if (appends) {
    a.k = qkv.slice(1, c.NH, c.KH);
    a.v = qkv.slice(1, c.NH + c.KH, c.KH);
  }
  a.key_cache = f.random(dtype, {blocks, c.KH, c.block_size, c.HS});
  a.value_cache = f.random(dtype, {blocks, c.KH, c.block_size, c.HS});
  a.block_table = f.integers(table).view({S, most});
  a.cu_seqlens = f.integers(bounds);
  a.lengths = f.integers(lengths);
  a.out =
      f.output(dtype, {bounds.back() + c.behind, c.NH, c.HS}, Store::add);  // rows behind stay as they are
  a.scale = 0.3f;
  a.window = c.window;
  if (f.with_data()) spoil_places(a);
  return a;
}

// N rows whose slots are shuffled; every fourth has none.
inline CacheAppend make_append(std::int64_t N, std::int64_t KH, std::int64_t HS, DType dtype,
                               testing::Fixture& f) {
  constexpr std::int64_t kBlockSize = 8;
  const std::int64_t blocks = N / kBlockSize + 2;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(blocks * kBlockSize));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  slots.resize(static_cast<std::size_t>(N));
  for (std::size_t n = 3; n < slots.size(); n += 4) slots[n] = -1;
  const Tensor qkv = f.random(dtype, {N, 3 * KH, HS});
  CacheAppend a;
  a.k = qkv.slice(1, KH, KH);
  a.v = qkv.slice(1, 2 * KH, KH);
  a.slots = f.integers(slots);
  a.key_cache = f.random(dtype, {blocks, KH, kBlockSize, HS});
  a.value_cache = f.random(dtype, {blocks, KH, kBlockSize, HS});
  return a;
}

}  // namespace warpwright::ops::cached
