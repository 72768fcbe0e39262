// The three products of a linear layer y = act(x·Wᵀ + b).
//   forward   preact = x·Wᵀ + bias, out = residual + scale·act(preact)
//   dx        dx = (dout·W) ∘ act'(preact)     (=); act and preact belong to the layer that computed x
//   dw        dweight (= or +=) doutᵀ·x, dbias (= or +=) Σ_rows dout
// ops/activation.hpp has the activations and their sources.
//
// A product is summed in fp32 (fp64 for fp64) over the whole reduction, in one order that does not depend on
// the number of threads. If a GPU's second-level cache adds to a gradient (+= of cuda.block, persistent and
// stream_k), numbers below 2^-126 count as zeros, including those of the gradient.
//
// x, weight, bias, preact and dout have one dtype. out and dx have the same dtype, or fp32 if it is bf16 or
// fp16. residual has out's dtype. The rows of x, out, preact, residual, dout and dx may be strided
// (strides[1] is 1); weight and the gradients are contiguous. M, N, K ≥ 0. Nothing may be in place. Throws
// Error if an argument does not fit.
//
// A forward may read the number of its rows from device memory. The other rows of out and preact then hold
// arbitrary values.
//
// On a CPU, a forward may take the weight in the layout of matmul/packed.hpp. `weight` then only gives the
// shape.
#pragma once

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

// In all three problems:
//   aligned          every matrix, and each of its rows, begins at a multiple of 16 bytes; the bias begins at
//                    a multiple of 4
//   aligned_factors  the same for the two factors of the product
struct MatmulForwardProblem {
  std::int64_t M = 0, N = 0, K = 0;
  DType dtype = DType::f32;
  bool bias = false, preact = false;
  Activation activation = Activation::none;
  bool batch_invariant = false;
  bool packed = false;
  std::int64_t packed_bytes = 0;          // bytes of `packed`
  bool rows_counted = false;              // device memory holds the number of rows to compute
  bool residual = false, scaled = false;  // scaled: scale is not 1
  bool widened = false;                   // out is fp32, and x is not
  bool aligned = true, aligned_factors = true;

  bool operator==(const MatmulForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct MatmulDxProblem {
  std::int64_t M = 0, N = 0, K = 0;
  DType dtype = DType::f32;
  Activation activation = Activation::none;
  bool widened = false;  // dx is fp32, and dout is not
  bool aligned = true, aligned_factors = true;

  bool operator==(const MatmulDxProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct MatmulDwProblem {
  std::int64_t M = 0, N = 0, K = 0;
  DType dtype = DType::f32;
  bool bias = false;
  Store store = Store::add;
  bool aligned = true, aligned_factors = true;

  bool operator==(const MatmulDwProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct MatmulForward {
  using Problem = MatmulForwardProblem;
  Tensor x;       // (M, K)
  Tensor weight;  // (N, K)
  Tensor bias;    // (N), optional
  Tensor out;     // (M, N)
  Tensor preact;  // (M, N), optional: kept for the activation's backward
  Activation activation = Activation::none;
  bool batch_invariant = false;  // a row's bits do not depend on the number of rows
  Tensor rows{};                 // (1) int32, optional: only the first min(M, rows[0]) rows are computed
  Tensor packed{};               // (packed_bytes) u8, optional: replaces the weight's elements
  Tensor residual{};             // (M, N), optional
  float scale = 1;               // factor for the activation's value
  Tensor next_weight{};          // (any, any), optional: read soon after, so it may be brought to a cache

  template <class F>
  void visit(F&& f) {
    f("rows", rows, Access::read);
    f("x", x, Access::read);
    f(packed ? "packed" : "weight", packed ? packed : weight, Access::read);
    f("bias", bias, Access::read);
    f("residual", residual, Access::read);
    f("next_weight", next_weight, Access::read);
    f("out", out, Access::write);
    f("preact", preact, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct MatmulDx {
  using Problem = MatmulDxProblem;
  Tensor dout;    // (M, N)
  Tensor weight;  // (N, K)
  Tensor preact;  // (M, K) with an activation, else absent
  Tensor dx;      // (M, K), =
  Activation activation = Activation::none;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("weight", weight, Access::read);
    f("preact", preact, Access::read);
    f("dx", dx, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct MatmulDw {
  using Problem = MatmulDwProblem;
  Tensor dout;     // (M, N)
  Tensor x;        // (M, K)
  Tensor dweight;  // (N, K) fp32 (fp64 for fp64), = or += by store
  Tensor dbias;    // (N) of the same dtype, = or += by store; optional
  Store store = Store::add;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("dweight", dweight, access_of(store));
    f("dbias", dbias, access_of(store));
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<MatmulForward>& matmul_forward_op();
const Op<MatmulDx>& matmul_dx_op();
const Op<MatmulDw>& matmul_dw_op();

// True if the rows are counted on the device and the planned variant computes only those rows.
bool matmul_counts_rows(Context& context, const MatmulForwardProblem& problem);

inline void matmul_forward(Context& context, const MatmulForward& args) {
  call(context, matmul_forward_op(), args);
}
inline void matmul_dx(Context& context, const MatmulDx& args) {
  call(context, matmul_dx_op(), args);
}
inline void matmul_dw(Context& context, const MatmulDw& args) {
  call(context, matmul_dw_op(), args);
}

}  // namespace warpwright::ops
