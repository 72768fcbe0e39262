// Products of many pairs of fp32 or fp16 matrices by the library (cuBLASLt), in one call. Sums are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/context.hpp"

namespace warpwright::ops::attention::cuda {

// A factor as the library reads it: its rows begin `leading` numbers apart, and its matrices `stride`.
struct BatchedFactor {
  std::int64_t leading = 0, stride = 0;
  bool transposed = false;

  bool operator==(const BatchedFactor&) const = default;
};

// out (rows, cols) = factor · a (rows, depth) · b (depth, cols), all stored by rows, for `count` matrices.
struct BatchedProduct {
  std::int64_t rows = 0, cols = 0, depth = 0, count = 0;
  BatchedFactor a = {}, b = {}, out = {};
  DType dtype = DType::f32;
  float factor = 1;

  bool operator==(const BatchedProduct&) const = default;
};

// The reason why there are no such products; "" if there are.
std::string refuse_batched();

// Bytes of the library's own workspace, at the beginning of the scratch.
inline constexpr std::size_t kBatchedWorkspace = std::size_t{32} << 20;

// Launches a product on the Context's stream. The Context keeps the descriptors and the kernel, the library's
// first proposal, of the latest products (kKeptProblems), so a graph can capture later calls. Throws Error if
// the library has no kernel.
void multiply(const Context& context, const BatchedProduct& product, const void* a, const void* b, void* out);

}  // namespace warpwright::ops::attention::cuda
