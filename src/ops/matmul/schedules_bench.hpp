// warpwright bench schedules: compares the block, the persistent and the Stream-K schedule of one family of
// kernels, as shares of the measured rate of their instruction.
#pragma once

#include <iosfwd>
#include <vector>

#include "ops/matmul/products_bench.hpp"

namespace warpwright::ops::matmul {

struct ScheduleBenchOptions {
  ContextOptions context;
  Device device;
  std::vector<ProductShape> shapes;
  DType dtype = DType::bf16;  // f32: rounded to tf32, if the context allows it
  bool wgmma = false;         // Hopper's kernels instead of those on mma.sync
  int rounds = 5;             // samples of every kernel
  bool json = false;
};
// Prints a line per product, or JSON. Throws UsageError if the device is not a GPU.
void bench_schedules(const ScheduleBenchOptions& options, std::ostream& out);

}  // namespace warpwright::ops::matmul
