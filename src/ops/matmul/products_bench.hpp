// warpwright bench products: times every kernel for a product on a GPU's tensor cores, and every algorithm
// that cuBLASLt's heuristic proposes. Reports the time that choices without measuring lose.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul {

// A product of a linear layer with N outputs and K inputs over M rows.
struct ProductShape {
  Direction direction = Direction::forward;
  std::int64_t M = 0, N = 0, K = 0;
  Activation activation = Activation::none;  // a forward then also keeps its pre-activation
  Finish finish = Finish::plain;             // combined: with a residual

  std::string describe() const;
  // The problem in bf16. The forward has a bias. dw adds to fp32.
  MatmulForwardProblem forward_problem() const;
  MatmulDxProblem dx_problem() const;
  MatmulDwProblem dw_problem(bool bias_gradient = false) const;
};

// The products that some words name:
//   gpt2                  all products of GPT-2's four sizes, at 4k, 16k and 65k tokens
//   bert                  all products of BERT-base, at 64 to 16k tokens
//   random:COUNT[:SEED]   sizes between 64 and 40,000, log-uniform; half of them are multiples of 128, the
//                         others of 8; at most 2 TFLOP each
//   MxNxK                 the three products of one layer
//   gelu:MxNxK            its forward with GELU, and the next layer's dx with GELU's derivative
//   residual:MxNxK        its forward with a residual
//   fp32:MxNxK            its forward and dx with fp32 results
// Throws UsageError for any other word.
std::vector<ProductShape> product_shapes(const std::vector<std::string>& words);

struct ProductBenchOptions {
  ContextOptions context;
  Device device;
  std::vector<ProductShape> shapes;
  bool bias_gradient = false;   // dw also computes dbias
  int rounds = 5;               // samples of every kernel
  double seconds = 0;           // time limit of the bench; 0: none
  double within = 3;            // as in TimingOptions (timer_bench.hpp)
  std::filesystem::path table;  // file for all measured times (measured.hpp); empty: none
  bool json = false;
};
// Traces the first forward among the shapes, on the persistent schedule. Writes one block's timeline as JSON.
// Prints the share of the epilogues' time that passes while the block's other group multiplies. Throws
// UsageError if the device is not a Hopper GPU, or if N or K is not a multiple of eight.
void trace_products(const ProductBenchOptions& options, const std::filesystem::path& file, std::ostream& out);
// Prints a line per product and a summary, or JSON. Throws UsageError if the device is not a Hopper GPU.
void bench_products(const ProductBenchOptions& options, std::ostream& out);

}  // namespace warpwright::ops::matmul
