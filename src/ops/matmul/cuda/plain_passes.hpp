// The steps of a linear layer around a product by kernels of their own, as llm.c does them: GELU and the
// residual by the cuda.plain kernels of their operations.
#pragma once

#include "ops/gelu/gelu.hpp"
#include "ops/matmul/cuda/parts.hpp"
#include "ops/residual/residual.hpp"

namespace warpwright::ops::matmul::cuda {

// True if those kernels can follow. They take whole matrices, and the result between two of them is rounded,
// so the matrices must be fp32.
template <class... Matrices>
bool suits_plain_passes(const Matrices&... matrices) {
  return ((!matrices || (matrices.dtype == DType::f32 && matrices.contiguous())) && ...);
}

template <class Args>
void run_plain(const Context& context, const Args& args) {
  KernelOf<Args, "cuda.plain"_kernel>::value.run(context, args);
}

// Runs a forward: multiply(args) makes the product and its bias, and all of the forward that needs no pass
// after it. The rest follows.
template <class Multiply>
void forward_with_plain_passes(const Context& context, const MatmulForward& args, Multiply&& multiply) {
  const bool has_gelu = is_gelu(args.activation);
  const bool plain = args.scale == 1 && (has_gelu || !ends_in_a_pass(args)) &&
                     suits_plain_passes(args.out, args.preact, args.residual);
  MatmulForward product = args;
  if (plain) product.residual = {};
  multiply(product);
  if (!plain) {
    if (ends_in_a_pass(args)) finish_forward(context, args, Tensor());
    return;
  }
  if (has_gelu) run_plain(context, GeluForward{product_of(args), args.out, args.activation});
  if (args.residual) run_plain(context, ResidualForward{args.residual, args.out, args.out});
}

}  // namespace warpwright::ops::matmul::cuda
