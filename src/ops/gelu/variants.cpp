#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/gelu/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "gelu.forward";
constexpr std::string_view kBackward = "gelu.backward";

GeluProblem forward_problem(const GeluForward& a) {
  require(is_gelu(a.activation), kForward, "the activation is no form of GELU");
  require_tensor(kForward, "x", a.x, a.x.dtype, a.x.shape);
  require_tensor(kForward, "out", a.out, a.x.dtype, a.x.shape);
  return {a.x.elements(), a.x.dtype, a.activation, false};
}

GeluProblem backward_problem(const GeluBackward& a) {
  require(is_gelu(a.activation), kBackward, "the activation is no form of GELU");
  require_tensor(kBackward, "x", a.x, a.x.dtype, a.x.shape);
  require_tensor(kBackward, "dout", a.dout, a.x.dtype, a.x.shape);
  require_tensor(kBackward, "dx", a.dx, a.x.dtype, a.x.shape);
  return {a.x.elements(), a.x.dtype, a.activation, true};
}

using Forward = Variant<GeluProblem, GeluForward>;
using Backward = Variant<GeluProblem, GeluBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.packed", refuse_cuda, gelu::cuda::packed_forward},
      Forward{"cuda.plain", refuse_cuda, gelu::cuda::plain_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, gelu::avx512::forward},
      Forward{"cpu.avx2", refuse_avx2, gelu::avx2::forward},
      Forward{kReference, refuse_other_devices, gelu::forward_reference},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.packed", refuse_cuda, gelu::cuda::packed_backward},
      Backward{"cuda.plain", refuse_cuda, gelu::cuda::plain_backward},
#endif
      Backward{"cpu.avx512", refuse_avx512, gelu::avx512::backward},
      Backward{"cpu.avx2", refuse_avx2, gelu::avx2::backward},
      Backward{kReference, refuse_other_devices, gelu::backward_reference},
};

}  // namespace

std::string GeluProblem::describe() const {
  return fmt::format("elements={} {} {}", elements, name_of(dtype), name_of(activation));
}
double GeluProblem::flops() const {
  return (backward ? 35.0 : 25.0) * static_cast<double>(elements);
}
double GeluProblem::bytes() const {
  return (backward ? 3.0 : 2.0) * static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

const Op<GeluProblem, GeluForward>& gelu_forward_op() {
  static const Op<GeluProblem, GeluForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<GeluProblem, GeluBackward>& gelu_backward_op() {
  static const Op<GeluProblem, GeluBackward> op{kBackward, kBackwardVariants, backward_problem};
  return op;
}

}  // namespace warpwright::ops
