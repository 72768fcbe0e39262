// Sequences for attention, shared by test and bench.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/attention/attention.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::attention {

enum class Bias : std::uint8_t { none, shared, each };  // each: every sequence has its own

struct Case {
  std::vector<std::int32_t> queries, keys;  // of each sequence
  std::int64_t NH, HS;
  Mask mask = Mask::causal;
  double magnitude = 1;  // approximate magnitude of the scores
  Bias bias = Bias::none;
  bool visible = false;
  std::int64_t padding = 3;  // elements between the rows of out, which are then not aligned
  std::int64_t max_seqlen = 0;
  bool pairs_aligned = false;  // rows of bias and visible begin at multiples of 16 bytes
  std::int64_t KH = 0;         // 0: NH
  std::int64_t window = 0;

  std::int64_t key_heads() const { return KH > 0 ? KH : NH; }
};

inline Case self_attention(std::vector<std::int32_t> lengths, std::int64_t NH, std::int64_t HS,
                           Mask mask = Mask::causal, double magnitude = 1) {
  return {lengths, lengths, NH, HS, mask, magnitude};
}

inline Case grouped(Case c, std::int64_t KH) {
  c.KH = KH;
  return c;
}

inline Case windowed(Case c, std::int64_t window) {
  c.window = window;
  return c;
}

// Windows below, at and above the tiles of kernels, as long as a sequence and longer; empty and odd
// sequences, a few new queries, more queries than keys; fewer key heads; a bias and a mask.
inline std::vector<Case> windowed_cases() {
  std::vector<Case> cases;
  for (const std::int64_t window : {1, 2, 31, 63, 64, 65, 100, 128, 191, 299, 300, 1000}) {
    cases.push_back(windowed(self_attention({300, 1, 129, 0, 64}, 2, 64), window));
  }
  for (const std::int64_t HS : {24, 32, 80, 96, 128, 256, 300}) {
    for (const std::int64_t window : {1, 50, 130}) {
      cases.push_back(windowed(self_attention({70, 0, 257}, 2, HS), window));
    }
  }
  for (const std::int64_t window : {3, 64, 90}) {
    cases.push_back(windowed({{1, 4, 3}, {70, 300, 0}, 3, 64}, window));
    cases.push_back(windowed({{200, 70, 9}, {150, 400, 9}, 2, 64}, window));
    cases.push_back(windowed(grouped(self_attention({449, 5, 260}, 4, 64), 2), window));
    cases.push_back(windowed(grouped({{210, 40}, {390, 333}, 3, 128}, 1), window));
    cases.push_back(windowed(grouped(self_attention({140, 7}, 5, 33), 1), window));
    cases.push_back(
        windowed(grouped({{3, 70}, {67, 129}, 4, 64, Mask::causal, 1, Bias::each, true}, 2), window));
    cases.push_back(windowed({{3, 70}, {67, 129}, 4, 64, Mask::causal, 1, Bias::shared, true}, window));
    cases.back().pairs_aligned = true;
  }
  cases.push_back(windowed(self_attention({1500}, 1, 64), 512));
  cases.push_back(windowed(self_attention({1100}, 2, 128), 129));
  cases.push_back(windowed(self_attention({130, 130}, 2, 64), 40));
  cases.back().max_seqlen = 130, cases.back().padding = 0;
  return cases;
}

// Fewer key heads than query heads: odd and empty sequences, more and fewer queries than keys, a few new
// queries, a bias and a mask, batches of one length.
inline std::vector<Case> grouped_cases() {
  std::vector<Case> cases;
  for (const Mask mask : {Mask::causal, Mask::none}) {
    cases.push_back(grouped(self_attention({5, 0, 130, 1, 64}, 4, 64, mask), 2));
    cases.push_back(grouped(self_attention({33, 97}, 6, 48, mask), 2));
    cases.push_back(grouped(self_attention({0, 71, 3}, 5, 33, mask), 1));
    cases.push_back(grouped(self_attention({131, 65}, 14, 64, mask), 2));
    cases.push_back(grouped(self_attention({140, 7}, 4, 128, mask), 2));
    cases.push_back(grouped({{1, 4, 3}, {70, 300, 0}, 14, 64, mask}, 2));
    cases.push_back(grouped({{20, 0, 70}, {150, 9, 211}, 6, 64, mask}, 2));
    cases.push_back(grouped({{100, 4}, {33, 2}, 5, 32, mask}, 1));
    cases.push_back(grouped({{3, 70}, {67, 129}, 4, 64, mask, 1, Bias::each, true}, 2));
    cases.push_back(grouped(self_attention({33, 33, 33}, 14, 64, mask), 2));
    cases.back().max_seqlen = 33, cases.back().padding = 0;
    cases.push_back(grouped(self_attention({70}, 4, 300, mask), 1));
    cases.push_back(grouped(self_attention({449, 1, 260}, 4, 64, mask), 2));
    cases.push_back(grouped({{210, 40}, {390, 333}, 3, 128, mask}, 1));
    // As many tiles of keys in each sequence.
    cases.push_back(grouped(self_attention({300, 290, 260}, 6, 64, mask), 2));
    cases.push_back(grouped(self_attention({300, 290, 260}, 3, 128, mask), 1));
  }
  return cases;
}

// Every length up to more than a tile, and for each a head size with every tail of a vector; packed, empty
// and long sequences; more queries than keys; a cache with one and with a few new queries; scores of 1e4; the
// head sizes of models, with lengths below, at and above a GPU's tiles; the grouped cases.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{
      self_attention({37}, 3, 32),
      self_attention({64, 64}, 2, 64),
      self_attention({5, 0, 130, 1, 64}, 2, 48, Mask::none),
      self_attention({5, 0, 130, 1, 64, 65}, 3, 40),
      self_attention({150}, 1, 80, Mask::none),
      self_attention({140}, 1, 128),
      self_attention({70}, 1, 256),
      self_attention({2048}, 1, 32),
      self_attention({}, 1, 8),
      self_attention({0, 0}, 2, 64),
      self_attention({97, 20}, 2, 64, Mask::causal, 1e4),
      self_attention({97, 3}, 2, 64, Mask::none, 1e4),
      {{1}, {1}, 2, 64},
      {{1, 1, 1}, {300, 0, 77}, 2, 64},
      {{3, 2}, {131, 2}, 2, 96, Mask::causal},
      {{2, 1}, {70, 1000}, 1, 33, Mask::none},
      {{20, 70}, {150, 211}, 2, 64},
      {{100, 90, 7}, {33, 0, 3}, 2, 64},
      {{100, 4}, {33, 2}, 1, 24, Mask::none},
      {{0, 9}, {12, 9}, 2, 16},
  };
  for (const Bias bias : {Bias::shared, Bias::each, Bias::none}) {
    for (const bool visible : {true, false}) {
      if (bias == Bias::none && !visible) continue;
      for (const bool aligned : {false, true}) {
        const std::size_t before = cases.size();
        cases.push_back({{5, 0, 130, 1, 64}, {5, 0, 130, 1, 64}, 3, 32, Mask::none, 1, bias, visible});
        cases.push_back({{3, 70}, {67, 129}, 2, 64, Mask::causal, 1, bias, visible});
        cases.push_back({{100}, {33}, 2, 80, Mask::none, 1, bias, visible});
        for (std::size_t i = before; i < cases.size(); ++i) cases[i].pairs_aligned = aligned;
      }
      for (const std::int64_t HS : {32, 64, 96, 128}) {
        for (const Mask mask : {Mask::causal, Mask::none}) {
          cases.push_back({{300, 129}, {300, 129}, 2, HS, mask, 1, bias, visible});
          cases.back().pairs_aligned = true;
        }
      }
    }
  }
  // Lengths at which a row of scores fits into registers, into shared memory with several warps per block,
  // and into shared memory with one.
  for (const std::int32_t Lk : {512, 513, 1024, 1025, 1536, 12289}) {
    cases.push_back({{3}, {Lk}, 2, 16, Mask::none});
    cases.push_back({{9}, {Lk}, 1, 16, Mask::causal, 1, Lk == 1024 ? Bias::shared : Bias::none, Lk == 1024});
  }
  for (const Mask mask : {Mask::causal, Mask::none}) {
    cases.push_back(self_attention({700, 3, 0, 1024, 33}, 1, 16, mask));
    cases.back().max_seqlen = 1024;
    cases.push_back(self_attention({130, 64, 65}, 2, 300, mask));
    cases.back().max_seqlen = 200;
  }
  // Batches of one length, as in training. Nothing about 33 is a multiple of four.
  for (const std::int32_t T : {1, 4, 33, 128}) {
    for (const Mask mask : {Mask::causal, Mask::none}) {
      cases.push_back(self_attention({T, T, T}, 2, T == 33 ? 33 : 64, mask));
      cases.back().max_seqlen = T;
    }
  }
  for (std::int32_t T = 1; T <= 70; ++T) {
    cases.push_back(self_attention({T}, 3, 64, T % 2 ? Mask::causal : Mask::none));
    cases.push_back({{T}, {T + T % 7}, 3, T});
    cases.push_back({{T}, {T + T % 5}, 2, 32});
  }
  std::vector<std::int32_t> short_ones(70, 1);  // mixed with longer ones; empty ones at the end
  for (const std::int32_t T : {16, 17, 31, 32, 33, 64, 65, 2, 0, 0, 0}) short_ones.push_back(T);
  for (const std::int64_t HS : {32, 64}) {
    cases.push_back(self_attention(short_ones, 3, HS, Mask::none));
    cases.push_back(self_attention({13, 1, 40, 30, 2, 5, 100, 7}, 5, HS));
  }
  for (const std::int64_t HS : {32, 64, 80, 96, 128}) {
    for (const std::int32_t T : {1, 37, 129, 300}) cases.push_back(self_attention({T}, 2, HS));
    cases.push_back(self_attention({129, 0, 256, 1, 61}, 2, HS, Mask::none));
    cases.push_back({{130, 7}, {300, 129}, 2, HS});
    cases.push_back({{300, 64}, {100, 64}, 1, HS});
    for (const Mask mask : {Mask::causal, Mask::none}) {
      cases.push_back(self_attention({300, 1, 129}, 2, HS, mask));
      cases.back().padding = 0;
    }
  }
  for (Case& c : grouped_cases()) cases.push_back(std::move(c));
  for (Case& c : windowed_cases()) cases.push_back(std::move(c));
  return cases;
}

inline std::vector<Case> bench_cases() {
  const std::vector<std::int32_t> packed{17, 250, 96, 33, 180, 64, 128, 256, 5, 211};
  return {self_attention({64, 64, 64, 64}, 12, 64),
          self_attention({1024, 1024, 1024, 1024}, 12, 64),
          self_attention({2048}, 12, 64),
          self_attention({1024}, 25, 64),
          self_attention({1024}, 8, 32),
          self_attention({1024}, 8, 128),
          grouped(self_attention({2048, 2048, 2048, 2048}, 14, 64), 2),
          windowed(self_attention({2048}, 12, 64), 512),
          self_attention(packed, 12, 64, Mask::none),
          {{1}, {1024}, 12, 64},
          {{1}, {8192}, 12, 64}};
}

// Training steps that fill a GPU.
inline std::vector<Case> gpu_bench_cases() {
  const auto batch = [](std::size_t B, std::int32_t T, std::int64_t NH, std::int64_t HS, Mask mask) {
    return self_attention(std::vector<std::int32_t>(B, T), NH, HS, mask);
  };
  return {batch(64, 1024, 12, 64, Mask::causal),
          batch(64, 512, 12, 64, Mask::none),
          batch(32, 2048, 16, 128, Mask::causal),
          batch(4, 8192, 16, 64, Mask::causal),
          batch(4, 8192, 16, 128, Mask::causal),
          grouped(batch(8, 2048, 14, 64, Mask::causal), 2),
          grouped(batch(16, 2048, 9, 64, Mask::causal), 3),
          grouped(batch(4, 2048, 32, 64, Mask::causal), 8),
          grouped(batch(4, 4096, 32, 128, Mask::causal), 8),
          windowed(grouped(batch(1, 8192, 32, 128, Mask::causal), 8), 4096)};
}

// An encoder's texts with a bias or a mask for each text, after the same without.
inline std::vector<Case> pair_bench_cases() {
  std::vector<Case> cases;
  for (const std::int64_t HS : {64, 32}) {
    for (const std::int32_t L : {128, 512, 1024}) {
      const std::vector<std::int32_t> lengths(static_cast<std::size_t>(16384 / L), L);
      for (const auto& [bias, visible] :
           {std::pair(Bias::none, false), {Bias::shared, false}, {Bias::none, true}, {Bias::each, false}}) {
        cases.push_back(self_attention(lengths, 12, HS, Mask::none));
        cases.back().bias = bias, cases.back().visible = visible;
        cases.back().pairs_aligned = true;
      }
    }
  }
  return cases;
}

// Training batches of one length, which max_seqlen tells the kernels: 192 heads of 1,024 rows of scores, and
// 3,072 heads of 256.
inline std::vector<Case> one_length_bench_cases() {
  std::vector<Case> cases{self_attention(std::vector<std::int32_t>(16, 1024), 12, 64),
                          self_attention(std::vector<std::int32_t>(256, 256), 12, 64)};
  for (Case& c : cases) c.max_seqlen = c.queries.front(), c.padding = 0;
  return cases;
}

// An encoder's texts of one length, which max_seqlen tells the kernels.
inline std::vector<Case> one_length_text_cases() {
  std::vector<Case> cases;
  for (const std::int32_t L : {128, 512}) {
    cases.push_back(self_attention(std::vector<std::int32_t>(static_cast<std::size_t>(16384 / L), L), 12, 64,
                                   Mask::none));
    cases.back().max_seqlen = L, cases.back().padding = 0;
  }
  return cases;
}

// Packed texts, as in an encoder: of one length, and of B lengths that are spaced evenly from 0.2 to 1.0 of
// S, the longest first. bench/peers/attention_varlen.py uses the same.
inline std::vector<Case> packed_bench_cases() {
  constexpr std::int32_t kTokens = 16384;
  constexpr std::pair<int, int> kBatches[] = {{1, 64},   {1, 256},  {1, 1024},  {16, 64},
                                              {16, 256}, {16, 512}, {16, 1024}, {64, 128},
                                              {64, 256}, {64, 512}, {64, 1024}};
  std::vector<Case> cases;
  for (const std::int64_t HS : {64, 32}) {
    for (const std::int32_t L : {16, 32, 64, 128, 256, 512, 2048}) {
      const auto texts = static_cast<std::size_t>(kTokens / L);
      cases.push_back(self_attention(std::vector<std::int32_t>(texts, L), 12, HS, Mask::none));
    }
    for (const auto& [B, S] : kBatches) {
      std::vector<std::int32_t> lengths;
      for (int i = B - 1; i >= 0; --i)
        lengths.push_back(static_cast<std::int32_t>(S * (0.2 + 0.8 * (i + 0.5) / B)));
      cases.push_back(self_attention(lengths, 12, HS, Mask::none));
    }
  }
  return cases;
}

inline double longest(const Case& c) {
  std::int32_t length = 1;
  for (const std::int32_t L : c.queries) length = std::max(length, L);
  for (const std::int32_t L : c.keys) length = std::max(length, L);
  return length;
}

inline Tensor bounds_of(const std::vector<std::int32_t>& lengths, testing::Fixture& f) {
  std::vector<std::int32_t> bounds{0};
  for (const std::int32_t length : lengths) bounds.push_back(bounds.back() + length);
  return f.integers(bounds);
}

// Views of one (N, NH + 2 KH, HS) product whose rows have the heads of q, of k and of v.
struct Parts {
  Tensor q, k, v;

  Parts(const Tensor& qkv, std::int64_t NH, std::int64_t KH)
      : q(qkv.slice(1, 0, NH)), k(qkv.slice(1, NH, KH)), v(qkv.slice(1, NH + KH, KH)) {}
};

// q, k and v are views of one qkv product if queries and keys have equal lengths. Otherwise k and v are views
// of one kv product.
inline AttentionForward make_forward(const Case& c, DType dtype, bool lse, testing::Fixture& f) {
  AttentionForward a;
  a.cu_seqlens_q = bounds_of(c.queries, f);
  a.cu_seqlens_k = bounds_of(c.keys, f);
  const std::int64_t Nq = a.cu_seqlens_q.as<std::int32_t>()[c.queries.size()];
  const std::int64_t Nk = a.cu_seqlens_k.as<std::int32_t>()[c.keys.size()];
  const std::int64_t KH = c.key_heads();
  const double scale = std::sqrt(c.magnitude);
  if (c.queries == c.keys) {
    const Parts parts(f.random(dtype, {Nq, c.NH + 2 * KH, c.HS}, scale), c.NH, KH);
    a.q = parts.q, a.k = parts.k, a.v = parts.v;
  } else {
    const Parts parts(f.random(dtype, {Nk, 2 * KH, c.HS}, scale), 0, KH);
    a.q = f.random(dtype, {Nq, c.NH, c.HS}, scale);
    a.k = parts.k, a.v = parts.v;
  }
  a.out = f.output(dtype, {Nq, c.NH, c.HS + c.padding}).slice(2, 0, c.HS);
  if (lse) a.lse = f.output(accumulation_dtype(dtype), {c.NH, Nq});
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.HS)));
  a.mask = c.mask;
  a.window = c.window;
  a.max_seqlen = c.max_seqlen;
  // Larger than the longest sequence. Four of five keys are visible; some queries see none.
  const auto most = static_cast<std::int64_t>(longest(c)) + 3;
  const auto row = [&](std::int64_t gap) { return c.pairs_aligned ? (most + 15) / 16 * 16 : most + gap; };
  const auto S = static_cast<std::int64_t>(c.queries.size());
  if (c.bias == Bias::shared) a.bias = f.random(dtype, {c.NH, most, row(2)}).slice(2, 0, most);
  if (c.bias == Bias::each) a.bias = f.random(dtype, {S, c.NH, most, row(2)}).slice(3, 0, most);
  if (c.visible) {
    const Tensor numbers = f.random_integers({S, most, row(1)}, 0, 5);
    const Tensor bytes = f.output(DType::u8, numbers.shape);
    for (std::int64_t i = 0; i < numbers.elements(); ++i) {
      const bool blind = i / row(1) % 7 == 3;
      bytes.as<std::uint8_t>()[i] = !blind && numbers.as<std::int32_t>()[i] != 0;
    }
    a.visible = bytes.slice(2, 0, most);
  }
  return a;
}

// out and lse are inputs here. out is random: with the forward's out and few visible keys, dout·v − dout·out
// would cancel, and only rounding would be left. lse has a realistic size; tests that check values replace it
// by the forward's.
inline AttentionBackward make_backward(const Case& c, DType dtype, testing::Fixture& f) {
  const AttentionForward forward = make_forward(c, dtype, false, f);
  const std::int64_t Nq = forward.q.shape[0], Nk = forward.k.shape[0];
  AttentionBackward a;
  a.q = forward.q, a.k = forward.k, a.v = forward.v;
  a.cu_seqlens_q = forward.cu_seqlens_q, a.cu_seqlens_k = forward.cu_seqlens_k;
  a.out = f.random(dtype, {Nq, c.NH, c.HS + c.padding}).slice(2, 0, c.HS);
  a.lse = f.random(accumulation_dtype(dtype), {c.NH, Nq}, 0.1, std::log(longest(c)));
  a.dout = f.random(dtype, {Nq, c.NH, c.HS});
  if (c.queries == c.keys) {
    const Parts parts(f.output(dtype, {Nq, c.NH + 2 * c.key_heads(), c.HS}), c.NH, c.key_heads());
    a.dq = parts.q, a.dk = parts.k, a.dv = parts.v;
  } else {
    const Parts parts(f.output(dtype, {Nk, 2 * c.key_heads(), c.HS}), 0, c.key_heads());
    a.dq = f.output(dtype, {Nq, c.NH, c.HS});
    a.dk = parts.k, a.dv = parts.v;
  }
  a.scale = forward.scale;
  a.mask = forward.mask;
  a.window = forward.window;
  a.max_seqlen = forward.max_seqlen;
  return a;
}

}  // namespace warpwright::ops::attention
