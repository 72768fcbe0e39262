// Sizes of the rotated attention's backward, shared by test and bench.
#pragma once

#include <vector>

#include "ops/attention/cases.hpp"
#include "ops/rope/angles.hpp"
#include "ops/rotated_attention/rotated_attention.hpp"

namespace warpwright::ops::rotated_attention {

struct Case {
  attention::Case attention;
  std::int64_t R = 0;  // 0: the head size
  RopeLayout layout = RopeLayout::half;
};

// Empty and odd sequences, lengths at the tiles of kernels, groups, windows, other head sizes and rotations.
inline std::vector<Case> test_cases() {
  using attention::grouped, attention::self_attention, attention::windowed;
  std::vector<Case> cases{{self_attention({}, 2, 64)},
                          {self_attention({0, 1, 0}, 2, 64)},
                          {self_attention({5, 0, 130, 1, 64}, 2, 48), 24},
                          {self_attention({37, 20}, 3, 33), 16, RopeLayout::interleaved},
                          {self_attention({70}, 2, 64), 0, RopeLayout::interleaved},
                          {self_attention({70, 9}, 2, 128), 64}};
  for (const std::int64_t HS : {64, 128}) {
    for (const Mask mask : {Mask::causal, Mask::none}) {
      cases.push_back({self_attention({63, 64, 65, 1}, 2, HS, mask)});
      cases.push_back({grouped(self_attention({191, 0, 193, 7}, 4, HS, mask), 2)});
      cases.push_back({grouped(self_attention({300, 129}, 3, HS, mask), 1)});
    }
    cases.push_back({windowed(grouped(self_attention({449, 5, 260}, 4, HS), 2), 64)});
    cases.push_back({self_attention({33, 33, 33}, 2, HS)});
    cases.back().attention.max_seqlen = 33;
  }
  for (Case& c : cases) c.attention.padding = 8;
  return cases;
}

// The training steps of Qwen2.5-0.5B, SmolLM2-135M, Llama-3.2-1B and Llama-3-8B.
inline std::vector<Case> gpu_bench_cases() {
  const auto batch = [](std::size_t B, std::int32_t T, std::int64_t NH, std::int64_t HS, std::int64_t KH) {
    return attention::grouped(attention::self_attention(std::vector<std::int32_t>(B, T), NH, HS), KH);
  };
  std::vector<Case> cases{{batch(8, 2048, 14, 64, 2)},
                          {batch(16, 2048, 9, 64, 3)},
                          {batch(4, 2048, 32, 64, 8)},
                          {batch(4, 4096, 32, 128, 8)}};
  for (Case& c : cases) c.attention.padding = 0;
  return cases;
}

// q, k and dqk are parts of (N, NH + 2 KH, HS). Positions count from 0 in each sequence.
inline RotatedAttentionBackward make_backward(const Case& c, DType dtype, testing::Fixture& f) {
  const std::int64_t R = c.R ? c.R : c.attention.HS,
                     P = static_cast<std::int64_t>(attention::longest(c.attention));
  RotatedAttentionBackward a;
  a.attention = attention::make_backward(c.attention, dtype, f);
  std::vector<std::int32_t> positions;
  for (const std::int32_t length : c.attention.queries) {
    for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
  }
  const auto N = static_cast<std::int64_t>(positions.size());
  const std::int64_t NH = c.attention.NH, KH = c.attention.key_heads();
  const Tensor dqkv = f.output(dtype, {N, NH + 2 * KH, c.attention.HS});
  a.attention.dq = a.attention.dk = {};
  a.dqk = dqkv.slice(1, 0, NH + KH);
  a.attention.dv = dqkv.slice(1, NH + KH, KH);
  a.positions = f.integers(positions);
  a.cos = f.output(accumulation_dtype(dtype), {P, R / 2});
  a.sin = f.output(accumulation_dtype(dtype), {P, R / 2});
  if (f.with_data()) write_rope_tables({.theta = 100, .R = R}, a.cos, a.sin);
  a.wrong = f.output(DType::i64, {1});  // −1: all its bits are 1
  a.layout = c.layout;
  return a;
}

}  // namespace warpwright::ops::rotated_attention
