// warpwright bench products: every kernel that there is for a product on a GPU's tensor cores, timed
// beside every algorithm that cuBLASLt's heuristic proposes, and what the choices lose that are made without
// measuring.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul {

// Of a linear layer with N outputs and K inputs over M rows.
struct ProductShape {
  Direction direction = Direction::forward;
  std::int64_t M = 0, N = 0, K = 0;
  Activation activation = Activation::none;  // forward: kept beside its pre-activation
  Finish finish = Finish::plain;             // combined: with a residual

  std::string describe() const;
  // Of bf16; the forward has a bias, dw adds to fp32.
  MatmulForwardProblem forward_problem() const;
  MatmulDxProblem dx_problem() const;
  MatmulDwProblem dw_problem(bool bias_gradient = false) const;
};

// "gpt2" and "bert": all products of GPT-2's four sizes at 4k, 16k and 65k tokens, of BERT-base's at 64 to
// 16k. "random:COUNT" or "random:COUNT:SEED": sizes between 64 and 40,000, even in their logarithms, half of
// them multiples of 128 and the others of eight; 2 TFLOP at most. "MxNxK": the three products of one layer;
// "gelu:MxNxK": its forward with GELU, and the next layer's dx with GELU's derivative; "residual:MxNxK": its
// forward with a residual; "fp32:MxNxK": its forward and dx in fp32. UsageError for any other word.
std::vector<ProductShape> product_shapes(const std::vector<std::string>& words);

struct ProductBenchOptions {
  ContextOptions context;
  Device device;
  std::vector<ProductShape> shapes;
  bool bias_gradient = false;   // dw with dbias
  int rounds = 5;               // samples of every kernel
  double seconds = 0;           // stop after so many; 0: never
  double within = 3;            // kernels predicted to take so many times as long as the fastest are timed
  std::filesystem::path table;  // of all measured times (measured.hpp)
  bool json = false;
};
// Traces the first forward among the shapes on the persistent schedule. Writes one block's timeline as JSON
// and prints which share of the epilogues' time passes while the block's other group multiplies.
void trace_products(const ProductBenchOptions& options, const std::filesystem::path& file, std::ostream& out);
void bench_products(const ProductBenchOptions& options, std::ostream& out);

}  // namespace warpwright::ops::matmul
