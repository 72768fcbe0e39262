// A linear layer of a model.
#pragma once

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/rotated_linear/rotated_linear.hpp"
#include "runtime/context.hpp"

namespace warpwright {

struct Linear {
  Tensor weight;      // (out, in); without data if `packed` replaces it (a tied head has both)
  Tensor bias;        // (out), optional
  Tensor packed{};    // the weight as a CPU's kernels take it (ops/matmul/packed.hpp)
  bool int8 = false;  // the product is in int8, and packed as ops/int8_linear lays it out
};

// The product of `args` with this layer's weight, by matmul_forward or, in int8, by int8_linear, which
// computes all rows. Throws Error if it is in int8 and has preact or a scale.
void linear_forward(Context& context, const Linear& layer, ops::MatmulForward args);

// The same for a layer that makes gate and up, with the gate after it; and for one that makes q, k and v,
// with the rotation of q and k after it.
void gated_linear_forward(Context& context, const Linear& layer, ops::GatedForward args);
void rotated_linear_forward(Context& context, const Linear& layer, ops::RotatedForward args);

}  // namespace warpwright
