// Packed sequences for pooling, shared by test and bench.
#pragma once

#include <vector>

#include "ops/pooling/pooling.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::pooling {

struct Case {
  std::vector<std::int32_t> lengths;
  std::int64_t C;
  std::int64_t behind = 0;  // rows of x that belong to no sequence
};

// Every length of a vector's tail; sequences with no row, with one and with many; no sequences; rows after
// the last sequence.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{{}, 8},           {{0, 0}, 33},       {{5, 0, 130, 1, 64}, 384}, {{70}, 768},
                          {{3, 700, 2}, 48}, {{17, 9}, 1024, 5}, {{1, 1, 1}, 385}};
  for (std::int64_t C = 1; C <= 34; ++C) cases.push_back({{static_cast<std::int32_t>(C % 7), 3}, C});
  return cases;
}

inline std::vector<Case> bench_cases() {
  return {{std::vector<std::int32_t>(64, 64), 384}, {std::vector<std::int32_t>(16, 512), 768}, {{1024}, 768}};
}

inline PoolingForward make_forward(const Case& c, DType dtype, DType out, Pooling kind, bool normalize,
                                   testing::Fixture& f) {
  std::vector<std::int32_t> bounds{0};
  for (const std::int32_t length : c.lengths) bounds.push_back(bounds.back() + length);
  PoolingForward a;
  a.x = f.random(dtype, {bounds.back() + c.behind, c.C});
  a.cu_seqlens = f.integers(bounds);
  a.out = f.output(out, {static_cast<std::int64_t>(c.lengths.size()), c.C});
  a.kind = kind;
  a.normalize = normalize;
  return a;
}

}  // namespace warpwright::ops::pooling
