// Kernels for the steps after a product that the product's own kernel does not do.
#pragma once

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::cuda {

// The tensor (M, N) that holds a forward's product if a separate pass finishes it: preact, or out if there is
// no preact or if it has fewer bits than out.
inline const Tensor& product_of(const MatmulForward& args) {
  return args.preact && args.preact.dtype == args.out.dtype ? args.preact : args.out;
}
// True if an activation or a kept pre-activation follows the product.
inline bool ends_in_a_pass(const MatmulForward& args) {
  return args.preact || args.activation != Activation::none;
}
// v = product_of(args) + bias, preact = v, out = residual + scale·act(v), all (M, N), in one pass over each
// of them. bias: args.bias (N), or none if the product includes it.
void finish_forward(const Context& context, const MatmulForward& args, const Tensor& bias);

// dx = dx ∘ act'(preact), both (M, K). Reads two matrices and writes one.
void finish_dx(const Context& context, const Tensor& dx, const Tensor& preact, Activation activation);

// dbias (N) (= or +=) the sums of dout's columns, dout (M, N), in fp32. The rows are cut into parts that
// depend on M and N alone. Eight warps sum each part. The sums of warps, and then of parts, are added in a
// fixed order. partials: column_sums_bytes(M, N) bytes of scratch.
void column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store,
                 float* partials);
std::size_t column_sums_bytes(std::int64_t M, std::int64_t N);
// The same in one stage, as llm.c does it: 32 warps sum 32 columns, in a fixed order. N must not be 0.
void plain_column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store);
// out (N) fp32 (= or +=) the sum over the parts of partials (parts, N), in a fixed order.
void total_sums(const Context& context, const float* partials, std::int64_t parts, const Tensor& out,
                Store store);

}  // namespace warpwright::ops::matmul::cuda
