// The three products of a linear layer y = act(x·Wᵀ + b).
//   forward  preact = x·Wᵀ + bias, out = residual + scale·act(preact)
//   dx       dx = (dout·W) ∘ act'(preact)          act and preact are those of the layer that made x
//   dw       dweight (= or +=) doutᵀ·x, dbias (= or +=) Σ_rows dout
// Products are summed in fp32 (fp64 for fp64) over the whole reduction in one fixed order, whatever the
// threads. Where a GPU's second-level cache adds to a gradient (+= of cuda.block, persistent and stream_k),
// numbers below 2^-126 count as zeros, those of the gradient included.
//
// A forward may learn from device memory how many of its rows there are: the others of out and preact hold
// anything afterwards.
//
// On a CPU a forward may be given the weight as matmul/packed.hpp lays it out once; `weight` then only says
// its shape.
//
// dtypes of x, weight, bias, preact and dout are one; out and dx have it too, or are fp32 where it is bf16 or
// fp16; residual has out's. Rows of x, out, preact, residual, dout and dx may be strided (strides[1] is 1),
// weight and gradients are contiguous. Nothing is in place. M, N, K ≥ 0.
#pragma once

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

// In all three problems:
//   aligned          every matrix begins at a multiple of 16 bytes, and so does each of its rows; the bias
//                    begins at a multiple of 4
//   aligned_factors  so do the two factors of the product
struct MatmulForwardProblem {
  std::int64_t M = 0, N = 0, K = 0;
  DType dtype = DType::f32;
  bool bias = false, preact = false;
  Activation activation = Activation::none;
  bool batch_invariant = false;
  bool packed = false;
  std::int64_t packed_bytes = 0;          // that were given
  bool rows_counted = false;              // device memory says how many of M rows are asked for
  bool residual = false, scaled = false;  // scaled: by another number than 1
  bool widened = false;                   // out is fp32, x is not
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
  bool widened = false;  // dx is fp32, dout is not
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
  Tensor preact;  // (M, N), optional: kept for the backward of the activation
  Activation activation = Activation::none;
  bool batch_invariant = false;  // a row's bits do not depend on how many others there are
  Tensor rows{};                 // (1) int32, optional: only that many rows, M at most, are asked for
  Tensor packed{};    // (packed_bytes) u8, optional: the weight's elements are read from here alone
  Tensor residual{};  // (M, N), optional
  float scale = 1;    // of the activation's value

  template <class F>
  void visit(F&& f) {
    f("rows", rows, Access::read);
    f("x", x, Access::read);
    f(packed ? "packed" : "weight", packed ? packed : weight, Access::read);
    f("bias", bias, Access::read);
    f("residual", residual, Access::read);
    f("out", out, Access::write);
    f("preact", preact, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
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
  Problem problem() const;  // throws Error where they do not fit together
};

struct MatmulDw {
  using Problem = MatmulDwProblem;
  Tensor dout;     // (M, N)
  Tensor x;        // (M, K)
  Tensor dweight;  // (N, K) fp32, = or += by store
  Tensor dbias;    // (N) fp32, likewise; optional
  Store store = Store::add;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("dweight", dweight, access_of(store));
    f("dbias", dbias, access_of(store));
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<MatmulForward>& matmul_forward_op();
const Op<MatmulDx>& matmul_dx_op();
const Op<MatmulDw>& matmul_dw_op();

// True if rows are counted and the variant that is planned computes only those that are asked for.
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
