// The parts of the rotated product, for the kernels that run them.
#pragma once

#include "ops/parts.hpp"
#include "ops/rotated_linear/rotated_linear.hpp"

namespace warpwright::ops {

inline auto parts_of(const RotatedForwardProblem& p) {
  return std::tuple{Part{matmul_forward_op(), p.product}, Part{rope_forward_op(), p.rope}};
}

}  // namespace warpwright::ops
