#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/global_norm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "global_norm";

GlobalNormProblem problem_of(const GlobalNorm& a) {
  const DType dtype = a.norm.dtype;
  require(dtype == DType::f32 || dtype == DType::f64, kName, "norm must be fp32 or fp64");
  require_tensor(kName, "norm", a.norm, dtype, {1});
  if (a.scale) require_tensor(kName, "scale", a.scale, dtype, {1});
  require(a.max_norm >= 0, kName, "max_norm is negative");  // NaN too
  GlobalNormProblem problem{0, static_cast<std::int64_t>(a.gradients.size()), dtype};
  for (const Tensor& gradient : a.gradients) {
    require_tensor(kName, "gradient", gradient, dtype, gradient.shape);
    problem.elements += gradient.elements();
  }
  return problem;
}

std::size_t workspace(const GlobalNormProblem& p, const DeviceInfo&) {
  const std::int64_t blocks = p.elements / global_norm_kernels::kBlock + p.tensors;  // or fewer
  return static_cast<std::size_t>(blocks) * sizeof(double);
}

using Run = Variant<GlobalNormProblem, GlobalNorm>;

constexpr std::array kVariants {
#if WARPWRIGHT_CUDA
  Run{"cuda.multi_tensor", refuse_cuda, global_norm_kernels::cuda::multi_tensor,
      global_norm_kernels::cuda::multi_tensor_workspace},
#endif
      Run{"cpu.avx512", refuse_avx512, global_norm_kernels::avx512::run, workspace},
      Run{"cpu.avx2", refuse_avx2, global_norm_kernels::avx2::run, workspace},
      Run{kReference, refuse_other_devices, global_norm_kernels::reference},
};

}  // namespace

std::string GlobalNormProblem::describe() const {
  return fmt::format("elements={} tensors={} {}", elements, tensors, name_of(dtype));
}
double GlobalNormProblem::flops() const {
  return 2.0 * static_cast<double>(elements);
}
double GlobalNormProblem::bytes() const {
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

const Op<GlobalNormProblem, GlobalNorm>& global_norm_op() {
  static const Op<GlobalNormProblem, GlobalNorm> op{kName, kVariants, problem_of};
  return op;
}

}  // namespace warpwright::ops
