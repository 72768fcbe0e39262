// Kernels for the parts that surround a product, where the product's kernel does not do them itself.
#pragma once

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops::matmul::cuda {

// The place of a forward's product that is finished in a pass of its own: preact or, where that is absent or
// has fewer bits than out, out.
inline const Tensor& product_of(const MatmulForward& args) {
  return args.preact && args.preact.dtype == args.out.dtype ? args.preact : args.out;
}
// True if more follows the product than numbers to add to it and to multiply it with.
inline bool ends_in_a_pass(const MatmulForward& args) {
  return args.preact || args.activation != Activation::none;
}
// v = product_of(args) + bias, preact = v, out = residual + scale·act(v), in one pass over each of them.
// bias: args' own, or none where the product has it.
void finish_forward(const Context& context, const MatmulForward& args, const Tensor& bias);

// dx = dx ∘ act'(preact), both (M, K): two passes read, one written.
void finish_dx(const Context& context, const Tensor& dx, const Tensor& preact, Activation activation);

// dbias (= or +=) the sums of dout's columns in fp32: the rows are cut into parts by M and N alone, each part
// is summed by eight warps whose sums are added in order, and the parts are added in order.
// partials: column_sums_bytes(M, N) of scratch.
void column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store,
                 float* partials);
std::size_t column_sums_bytes(std::int64_t M, std::int64_t N);
// The same in one stage, as document 000 has it: 32 warps sum 32 columns, in a fixed order; dout has columns.
void plain_column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store);
// out (= or +=) Σ over parts of partials (parts, N), in a fixed order.
void total_sums(const Context& context, const float* partials, std::int64_t parts, const Tensor& out,
                Store store);

}  // namespace warpwright::ops::matmul::cuda
