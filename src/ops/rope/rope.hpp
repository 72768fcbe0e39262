// Rotary position embedding: rotates pairs of a head's elements by angles that depend on the row's position.
//   forward   (out_a, out_b) = (x_a·cos − x_b·sin, x_b·cos + x_a·sin)
//   backward  (dx_a, dx_b) = (dout_a·cos + dout_b·sin, dout_b·cos − dout_a·sin)   (=)
// for the pairs (a, b) of the first R elements of each head, with cos[positions[n], i] and sin[positions[n],
// i] for pair i. The other HS − R elements are copied; in place they are left alone.
// Source: J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864.
//
// x, out, dout and dx are (N, NH, HS) of one dtype. Their rows and heads may be strided; the last stride is
// 1. out may be x and dx may be dout, with the same strides; no other arguments may overlap. The arithmetic
// is fp32 (fp64 for fp64) and is rounded once. angles.hpp makes the tables cos and sin.
//
// If one product computes q, k and v, the heads of q and k are adjacent in its rows. One call rotates them
// together: x is the product's first NH = heads of q + heads of k heads, with the row stride of the product.
//
// A position must be in [0, P). The caller sets `wrong` to −1. A call that finds a wrong position writes the
// first such row there, unless `wrong` already has an earlier row. One `wrong` can thus serve all layers of a
// pass.
//   CPU  rope_forward and rope_backward throw Error before they write anything, and set `wrong` to −1 again.
//   GPU  A row with a wrong position is not written, and nothing outside the tensors is read. Whoever reads
//        the result also reads `wrong` and calls require_positions().
//
// Throws Error if an argument does not fit.
#pragma once

#include <utility>

#include "ops/op.hpp"

namespace warpwright::ops {

// The pairs of the first R elements of a head: (i, i + R/2) as in GPT-NeoX and in Hugging Face's Llama, or
// (2i, 2i + 1) as in GPT-J and in the paper.
enum class RopeLayout : std::uint8_t { half, interleaved };
inline constexpr RopeLayout kRopeLayouts[] = {RopeLayout::half, RopeLayout::interleaved};

constexpr std::string_view name_of(RopeLayout layout) {
  return layout == RopeLayout::half ? "half" : "interleaved";
}

struct RopeProblem {
  std::int64_t N = 0, NH = 0, HS = 0;
  std::int64_t R = 0;  // rotary elements of a head
  std::int64_t P = 0;  // positions in the tables
  DType dtype = DType::f32;
  RopeLayout layout = RopeLayout::half;
  bool backward = false;
  bool in_place = false;
  bool aligned = true;  // every head and both tables begin at multiples of 16 bytes

  bool operator==(const RopeProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct RopeForward {
  using Problem = RopeProblem;

  Tensor x;          // (N, NH, HS)
  Tensor positions;  // (N) int32
  Tensor cos, sin;   // (P, R/2) fp32 (fp64 for fp64 x)
  Tensor out;        // (N, NH, HS); may be x
  Tensor wrong;      // (1) int64
  RopeLayout layout = RopeLayout::half;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("positions", positions, Access::read);
    f("cos", cos, Access::read);
    f("sin", sin, Access::read);
    f("out", out, Access::write);
    f("wrong", wrong, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct RopeBackward {
  using Problem = RopeProblem;

  Tensor dout;       // (N, NH, HS)
  Tensor positions;  // (N) int32
  Tensor cos, sin;   // (P, R/2) fp32 (fp64 for fp64 dout)
  Tensor dx;         // (N, NH, HS); may be dout
  Tensor wrong;      // (1) int64
  RopeLayout layout = RopeLayout::half;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("positions", positions, Access::read);
    f("cos", cos, Access::read);
    f("sin", sin, Access::read);
    f("dx", dx, Access::write);
    f("wrong", wrong, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<RopeForward>& rope_forward_op();
const Op<RopeBackward>& rope_backward_op();

void rope_forward(Context& context, const RopeForward& args);
void rope_backward(Context& context, const RopeBackward& args);

// Throws Error unless `wrong` is −1. Otherwise it is the row whose position is not in the tables of P
// positions. `where` names the caller's argument.
void require_positions(std::string_view where, std::int64_t wrong, std::int64_t P);

// Calls an operation that rotates. On a CPU it then throws Error if a position is wrong.
template <class Args>
void call_with_positions(Context& context, const Op<Args>& op, const Args& args) {
  call(context, op, args);
  if (context.recorder() || context.device().device.kind != DeviceKind::cpu) return;
  require_positions(op.name, std::exchange(*args.wrong.template as<std::int64_t>(), -1), args.cos.shape[0]);
}

}  // namespace warpwright::ops
