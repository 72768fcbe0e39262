#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/residual/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "residual.forward";
constexpr std::string_view kBackward = "residual.backward";

ResidualProblem forward_problem(const ResidualForward& args) {
  require_tensor(kForward, "a", args.a, args.a.dtype, args.a.shape);
  require_tensor(kForward, "b", args.b, args.a.dtype, args.a.shape);
  require_tensor(kForward, "out", args.out, args.a.dtype, args.a.shape);
  return {args.a.elements(), args.a.dtype, false};
}

ResidualProblem backward_problem(const ResidualBackward& args) {
  require_tensor(kBackward, "dout", args.dout, args.dout.dtype, args.dout.shape);
  require_tensor(kBackward, "da", args.da, args.dout.dtype, args.dout.shape);
  require_tensor(kBackward, "db", args.db, args.dout.dtype, args.dout.shape);
  return {args.dout.elements(), args.dout.dtype, true};
}

using Forward = Variant<ResidualProblem, ResidualForward>;
using Backward = Variant<ResidualProblem, ResidualBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.packed", refuse_cuda, residual::cuda::packed_forward},
      Forward{"cuda.plain", refuse_cuda, residual::cuda::plain_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, residual::avx512::forward},
      Forward{"cpu.avx2", refuse_avx2, residual::avx2::forward},
      Forward{kReference, refuse_other_devices, residual::forward_reference},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.packed", refuse_cuda, residual::cuda::packed_backward},
      Backward{"cuda.plain", refuse_cuda, residual::cuda::plain_backward},
#endif
      Backward{"cpu.avx512", refuse_avx512, residual::avx512::backward},
      Backward{"cpu.avx2", refuse_avx2, residual::avx2::backward},
      Backward{kReference, refuse_other_devices, residual::backward_reference},
};

}  // namespace

std::string ResidualProblem::describe() const {
  return fmt::format("elements={} {}", elements, name_of(dtype));
}
double ResidualProblem::flops() const {
  return (backward ? 2.0 : 1.0) * static_cast<double>(elements);
}
double ResidualProblem::bytes() const {
  return (backward ? 5.0 : 3.0) * static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

const Op<ResidualProblem, ResidualForward>& residual_forward_op() {
  static const Op<ResidualProblem, ResidualForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<ResidualProblem, ResidualBackward>& residual_backward_op() {
  static const Op<ResidualProblem, ResidualBackward> op{kBackward, kBackwardVariants, backward_problem};
  return op;
}

}  // namespace warpwright::ops
