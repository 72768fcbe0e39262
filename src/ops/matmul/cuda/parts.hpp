// Kernels for the parts next to a product that the kernel of the product leaves out.
#pragma once

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::cuda {

// The destination of a forward's product if a separate pass finishes it: preact, or out if preact is absent
// or has fewer bits.
inline const Tensor& product_of(const MatmulForward& args) {
  return args.preact && args.preact.dtype == args.out.dtype ? args.preact : args.out;
}
// True if an activation or a kept pre-activation follows the product.
inline bool ends_in_a_pass(const MatmulForward& args) {
  return args.preact || args.activation != Activation::none;
}
// v = product_of(args) + bias, preact = v, out = residual + scale·act(v), in one pass over each of them.
// bias: that of args, or none if the product already has it.
void finish_forward(const Context& context, const MatmulForward& args, const Tensor& bias);

// dx = dx ∘ act'(preact), both (M, K). The pass reads two matrices and writes one.
void finish_dx(const Context& context, const Tensor& dx, const Tensor& preact, Activation activation);

// dbias (= or +=) the sums of dout's columns in fp32. M and N alone decide how the rows are cut into parts.
// Eight warps sum each part, their sums are added in order, and so are the parts. partials:
// column_sums_bytes(M, N) of scratch.
void column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store,
                 float* partials);
std::size_t column_sums_bytes(std::int64_t M, std::int64_t N);
// The same in one stage, as in document 000: 32 warps sum 32 columns in a fixed order. dout must have
// columns.
void plain_column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store);
// out (= or +=) Σ over the parts of partials (parts, N), in a fixed order.
void total_sums(const Context& context, const float* partials, std::int64_t parts, const Tensor& out,
                Store store);

}  // namespace warpwright::ops::matmul::cuda
