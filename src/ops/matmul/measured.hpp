// Measured times of a product's kernels, a line of JSON a product: what `warpwright bench products --table`
// writes and the costs are fitted to (fit.cpp).
//
//   {"direction": "dx", "rows": 4096, "cols": 768, "depth": 3072, "activation": "none", "row_sums": false,
//    "seconds": {"cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]": 3.12e-05, …}}
//
// Matrices are bf16; dw adds to fp32; an activation's other matrix is written (forward) or read (dx). A
// kernel is named as the log names a choice.
#pragma once

#include <map>
#include <string>

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul {

struct MeasuredProduct {
  Request request;
  std::map<std::string, double> seconds;  // by kernel

  std::string line() const;
  static MeasuredProduct read(const std::string& line);  // an Error where it is not as above
};

// "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]".
std::string kernel_name(Schedule schedule, const Selection& selection);
// "cuda.cublaslt[128x256, clusters 2x1, option 5]".
std::string kernel_name(const LibraryKernel& kernel);
LibraryKernel library_kernel_named(const std::string& name);  // an Error where it names none

}  // namespace warpwright::ops::matmul
