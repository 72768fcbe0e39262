// The parts of the rotated attention, for the kernels that run them.
#pragma once

#include "ops/parts.hpp"
#include "ops/rotated_attention/rotated_attention.hpp"

namespace warpwright::ops {

inline auto parts_of(const RotatedAttentionProblem& p) {
  return std::tuple{Part{attention_backward_op(), p.attention}, Part{rope_backward_op(), p.rope}};
}

}  // namespace warpwright::ops
