// A linear layer whose factors are rounded to 8 bits, for inference on a CPU.
//   out = residual + act(s_x[m] · s_w[n] · Σ_k (q_x[m,k] − z[m]) · q_w[n,k] + bias[n])
//
// Each row of x, and each row of weight, is rounded by a scale of its own, in fp32 and with ties to even.
//   weight   s = max|row| / 127,       q = round(row · (127 / max|row|))
//   x        s = (high − low) / 255,   z = round(−low · (255 / (high − low))),
//            q = round(row · (255 / (high − low))) + z, limited to 0 … 255
//            where low and high are the row's least and largest value, or 0 if that is beyond
// A row counts as zeros if its max|row| or its high − low is below 2^-120. If a value of a row of x, or its
// high − low, is not finite, that row of out is NaN. A product of scales beyond fp32 may give NaN, too.
//
// With factors c, x · c is rounded instead of x, and weight / c instead of weight, which leaves the product
// as it is. A column of x that is much larger than the others would make these lose their digits.
//
// The sum over k is exact (int32), so a result depends neither on the number of threads nor on other rows.
// Everything after it is fp32. x, bias, residual and out have one dtype, fp32 or bf16 (for the reference, any
// floating dtype). The rows of x, residual and out may be strided (strides[1] is 1); weight is contiguous and
// has a floating dtype of its own. Nothing may be in place. M, N ≥ 0, and 0 ≤ K ≤ kMostDepth. Throws Error if
// an argument does not fit.
//
// Sources: O. Zafrir et al., "Q8BERT", arXiv:1910.06188; a scale for each token: Z. Yao et al.,
// "ZeroQuant", arXiv:2206.01861; c: G. Xiao et al., "SmoothQuant", arXiv:2211.10438.
#pragma once

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

struct Int8LinearProblem {
  std::int64_t M = 0, N = 0, K = 0;
  DType dtype = DType::f32;  // of x, bias, residual and out
  bool bias = false, residual = false;
  Activation activation = Activation::none;
  bool packed = false;

  bool operator==(const Int8LinearProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct Int8Linear {
  using Problem = Int8LinearProblem;
  // The largest power of two whose sums fit into int32.
  static constexpr std::int64_t kMostDepth = std::int64_t{1} << 16;

  Tensor x;          // (M, K)
  Tensor weight;     // (N, K); only its shape counts if there is `packed`
  Tensor factors{};  // (K) fp32 (fp64 for fp64), more than 0, optional; without effect if there is `packed`
  Tensor bias;       // (N), optional
  Tensor out;        // (M, N)
  Activation activation = Activation::none;
  Tensor packed{};    // u8, optional: weight and factors from int8_pack()
  Tensor residual{};  // (M, N), optional

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f(packed ? "packed" : "weight", packed ? packed : weight, Access::read);
    if (!packed) f("factors", factors, Access::read);
    f("bias", bias, Access::read);
    f("residual", residual, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<Int8Linear>& int8_linear_op();

inline void int8_linear(Context& context, const Int8Linear& args) {
  call(context, int8_linear_op(), args);
}

// The name of the layout in which this device's kernels take packed weights; "" if the reference is forced,
// which takes none. It is the same on all processors. It changes with every change of the layout, of the
// rounding, or of the factors that a model gives (packed_layout.cpp), so that a cache never holds bytes that
// are packed in another way.
std::string int8_layout(const DeviceInfo& device);

// Bytes of a packed weight (N, K), a multiple of 64.
std::int64_t int8_packed_bytes(std::int64_t N, std::int64_t K);

// Rounds a weight and packs it. weight: (N, K), contiguous, of any floating dtype. factors: (K) fp32, or
// absent. packed: (int8_packed_bytes) u8, which begins at a multiple of 64 bytes. Throws Error if a tensor
// does not fit, a value is not finite, or a factor is not more than 0.
void int8_pack(const Context& context, const Tensor& weight, const Tensor& factors, const Tensor& packed);

// The reason why this device has no kernel for int8; "" if it has one.
std::string refuse_int8(const DeviceInfo& device);

}  // namespace warpwright::ops
