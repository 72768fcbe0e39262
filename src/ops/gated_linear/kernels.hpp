// The parts of the gated products, for the kernels that run them.
#pragma once

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/parts.hpp"

namespace warpwright::ops {

inline auto parts_of(const GatedForwardProblem& p) {
  return std::tuple{Part{matmul_forward_op(), p.product}, Part{gate_forward_op(), p.gate}};
}
inline auto parts_of(const GatedDxProblem& p) {
  return std::tuple{Part{matmul_dx_op(), p.product}, Part{gate_backward_op(), p.gate}};
}

}  // namespace warpwright::ops
