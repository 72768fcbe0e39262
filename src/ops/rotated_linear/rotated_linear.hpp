// The product that makes q, k and v, with the rotation of q and k after it.
//   out = x·Wᵀ + bias, then the first `rotated` heads of each row are rotated
// ops/matmul has the sums of a product, ops/rope the rotation, its positions and their errors. `separate`
// runs those operations' kernels one after the other. A fused kernel does not round q and k before it rotates
// them, and does not read them again.
//
// A wrong position is reported as in ops/rope. On a GPU, q and k of its row are then arbitrary; on a CPU, q
// and k of all rows.
//
// All tensors but the tables have one dtype. The rows of x may be strided; the rest is contiguous. No two
// arguments may overlap. Throws Error if an argument does not fit.
#pragma once

#include "ops/matmul/matmul.hpp"
#include "ops/rope/rope.hpp"

namespace warpwright::ops {

struct RotatedForwardProblem {
  MatmulForwardProblem product;
  RopeProblem rope;
  DType dtype = DType::f32;

  bool operator==(const RotatedForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct RotatedForward {
  using Problem = RotatedForwardProblem;

  Tensor x;                  // (M, K)
  Tensor weight;             // (H·HS, K)
  Tensor bias;               // (H·HS), optional
  Tensor out;                // (M, H, HS)
  std::int64_t rotated = 0;  // heads, the first of the H
  Tensor positions;          // (M) int32
  Tensor cos, sin;           // (P, R/2) fp32 (fp64 for fp64)
  Tensor wrong;              // (1) int64
  RopeLayout layout = RopeLayout::half;
  bool batch_invariant = false;  // a row's bits do not depend on the number of rows
  Tensor packed{};               // (packed_bytes) u8, optional: replaces the weight's elements
  Tensor next_weight{};          // (any, any), optional: read soon after, so it may be brought to a cache

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f(packed ? "packed" : "weight", packed ? packed : weight, Access::read);
    f("bias", bias, Access::read);
    f("positions", positions, Access::read);
    f("cos", cos, Access::read);
    f("sin", sin, Access::read);
    f("next_weight", next_weight, Access::read);
    f("out", out, Access::write);
    f("wrong", wrong, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<RotatedForward>& rotated_forward_op();

inline void rotated_forward(Context& context, const RotatedForward& args) {
  call_with_positions(context, rotated_forward_op(), args);
}

namespace rotated_linear {

// The two operations of a call.
MatmulForward product_of(const RotatedForward& args);
RopeForward rope_of(const RotatedForward& args);

}  // namespace rotated_linear
}  // namespace warpwright::ops
