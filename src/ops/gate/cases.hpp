// Sizes of the gated activation, shared by test and bench.
#pragma once

#include <vector>

#include "ops/gate/gate.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::gate {

struct Case {
  std::int64_t rows, columns;
  double scale = 2;  // of gate_up: 2 covers the curved part, 20 both tails
};

// Every length of a vector's tail, no elements, odd sizes and widths of real models.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 64}, {3, 0}, {3, 1536}, {257, 1536}, {1, 4864}, {3, 4864}, {3, 9000, 20}};
  for (const std::int64_t rows : {1, 3, 257}) {
    for (const std::int64_t columns : {1, 7, 64, 1000}) cases.push_back({rows, columns});
  }
  for (std::int64_t columns = 2; columns <= 40; ++columns) cases.push_back({3, columns});
  return cases;
}

// One sequence of SmolLM2-135M, Qwen2.5-0.5B and Llama-3.2-1B.
inline std::vector<Case> bench_cases() {
  return {{2048, 1536}, {2048, 4864}, {2048, 8192}};
}

// The same models with the batches of a GPU's training step.
inline std::vector<Case> gpu_bench_cases() {
  return {{16 * 2048, 1536}, {8 * 2048, 4864}, {4 * 2048, 8192}};
}

inline GateForward make_forward(const Case& c, DType dtype, GateActivation activation, testing::Fixture& f) {
  return {f.random(dtype, {c.rows, 2 * c.columns}, c.scale), f.output(dtype, {c.rows, c.columns}),
          activation};
}

// out: also the forward's result.
inline GateBackward make_backward(const Case& c, DType dtype, GateActivation activation, testing::Fixture& f,
                                  bool out = false) {
  return {.dout = f.random(dtype, {c.rows, c.columns}),
          .gate_up = f.random(dtype, {c.rows, 2 * c.columns}, c.scale),
          .dgate_up = f.output(dtype, {c.rows, 2 * c.columns}),
          .out = out ? f.output(dtype, {c.rows, c.columns}) : Tensor(),
          .activation = activation};
}

}  // namespace warpwright::ops::gate
