// A table of measured times: one line of JSON per product, with the seconds of each kernel.
// `warpwright bench products --table` writes it, and the costs are fitted to it (fit.cpp).
//
//   {"direction": "dx", "rows": 4096, "cols": 768, "depth": 3072, "activation": "none", "row_sums": false,
//    "seconds": {"cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]": 3.12e-05, …}}
//
// Matrices are bf16, and dw adds to fp32. With an activation, forward writes the pre-activation and dx reads
// it. A kernel's name is that of a choice in the log.
#pragma once

#include <map>
#include <string>

#include "ops/matmul/selector.hpp"

namespace warpwright::ops::matmul {

struct MeasuredProduct {
  Request request;
  std::map<std::string, double> seconds;  // by kernel

  std::string line() const;
  // Throws Error if the line has another form.
  static MeasuredProduct read(const std::string& line);
};

// "cuda.persistent[128x192, in turns, clusters 2x1, 66 workers]".
std::string kernel_name(Schedule schedule, const Selection& selection);
// "cuda.cublaslt[128x256, clusters 2x1, option 5]".
std::string kernel_name(const LibraryKernel& kernel);
// Throws Error if the name is no such kernel's.
LibraryKernel library_kernel_named(const std::string& name);

}  // namespace warpwright::ops::matmul
