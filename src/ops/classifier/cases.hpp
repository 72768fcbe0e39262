// Shapes of the classifier, shared by test and bench.
#pragma once

#include <vector>

#include "ops/classifier/classifier.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::classifier_kernels {

struct Case {
  std::int64_t N, V, Vp;
  double scale = 2;       // of the logits
  std::int64_t skew = 0;  // elements by which the first row's address exceeds a multiple of 16 bytes
};

// Every length of a vector's tail with and without padding, rows at any address, one class, no rows, more
// rows than a GPU runs blocks at once, GPT-2's vocabulary, and logits so large that all probabilities except
// one vanish.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 5, 8},
                          {3, 50257, 50304},
                          {5, 50304, 50304},
                          {33, 1021, 1024},
                          {64, 1021, 1021},
                          {7, 300, 320, 1e4},
                          {4, 1, 1},
                          {4, 1, 64},
                          {9, 129, 1000, 30},
                          {9000, 9, 16},
                          {5, 1021, 1024, 2, 1},
                          {5, 200, 200, 2, 3}};
  for (std::int64_t V = 1; V <= 150; ++V) cases.push_back({1 + V % 4, V, V + V % 19});
  for (std::int64_t V = 1; V <= 70; V += 3) cases.push_back({2, V, (V + 7) / 8 * 8 + V % 2 * 8});
  return cases;
}

// GPT-2 at B·T = 256.
inline std::vector<Case> bench_cases() {
  return {{256, 50257, 50304}};
}

// B·T = 65,536, as in a GPU's training step.
inline std::vector<Case> gpu_bench_cases() {
  return {{65536, 50257, 50304}};
}

struct Options {
  bool gradient = true, weights = false, probabilities = false;
};

// Every fifth row is left out. The padding columns hold NaN, because no kernel may read them.
inline Classifier make(const Case& c, DType dtype, const Options& options, testing::Fixture& f) {
  Classifier a;
  const Tensor all = f.random(dtype, {c.skew + c.N * c.Vp}, c.scale);
  a.logits = Tensor(all.slice(0, c.skew, c.N * c.Vp).data, dtype, {c.N, c.Vp});
  const Tensor padding = f.output(dtype, {c.Vp});
  for (std::int64_t n = 0; n < c.N && c.Vp > c.V && f.with_data(); ++n) {
    const std::size_t size = size_of(dtype);
    auto* row = static_cast<std::byte*>(a.logits.data) + static_cast<std::size_t>(n * c.Vp + c.V) * size;
    std::copy_n(static_cast<const std::byte*>(padding.data), static_cast<std::size_t>(c.Vp - c.V) * size,
                row);
  }
  a.targets = f.random_integers({c.N}, 0, static_cast<std::int32_t>(c.V));
  for (std::int64_t n = 3; n < c.N; n += 5) a.targets.as<std::int32_t>()[n] = -1;
  if (options.weights) a.weights = f.random(accumulation_dtype(dtype), {c.N}, 0.1, 0.5);
  a.losses = f.output(accumulation_dtype(dtype), {c.N});
  if (options.probabilities) a.probabilities = f.output(dtype, {c.N, c.V});
  a.V = c.V;
  a.gradient = options.gradient;
  return a;
}

}  // namespace warpwright::ops::classifier_kernels
