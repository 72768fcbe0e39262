#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/refuse.hpp"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "residual_layernorm.forward";

ResidualLayerNormProblem forward_problem(const ResidualLayerNormForward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, kForward, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  require_tensor(kForward, "x", a.x, a.x.dtype, {N, C});
  require_tensor(kForward, "y", a.y, a.x.dtype, {N, C});
  const bool fp32_parameters = layernorm::has_fp32_parameters(kForward, a.x.dtype, a.weight);
  require_tensor(kForward, "weight", a.weight, a.weight.dtype, {C});
  if (a.bias) require_tensor(kForward, "bias", a.bias, a.weight.dtype, {C});
  require(!a.rms || (!a.bias && !a.mean), kForward, "bias and mean are layer normalization's, not rms's");
  require_tensor(kForward, "residual", a.residual, a.x.dtype, {N, C});
  require_tensor(kForward, "out", a.out, a.x.dtype, {N, C});
  require(a.out.data != a.residual.data || N == 0, kForward, "out is residual");
  if (a.mean) require_tensor(kForward, "mean", a.mean, accumulation_dtype(a.x.dtype), {N});
  if (a.rstd) require_tensor(kForward, "rstd", a.rstd, accumulation_dtype(a.x.dtype), {N});
  const std::int64_t kept = layernorm::kept_columns(kForward, N, a.x.dtype, a.kept_columns, a.kept);
  return {N, C, a.x.dtype, a.mean || a.rstd, static_cast<bool>(a.bias), a.rms, fp32_parameters, kept};
}

template <auto kernel>
void run(const Context& context, const ResidualLayerNormForward& args) {
  kernel(context, residual_layernorm::as_sum(args));
}

using Forward = Variant<ResidualLayerNormProblem, ResidualLayerNormForward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", bias_residual_layernorm::cuda::refuse_warp_row_of,
          run<bias_residual_layernorm::cuda::warp_row_forward>},
      Forward{"cuda.warp_loop", bias_residual_layernorm::cuda::refuse_any,
              run<bias_residual_layernorm::cuda::warp_loop_forward>},
#endif
      Forward{"cpu.avx512", layernorm::refuse_avx512_rows, run<bias_residual_layernorm::avx512::forward>},
      Forward{"cpu.avx2", layernorm::refuse_avx2_rows, run<bias_residual_layernorm::avx2::forward>},
      Forward{"cpu.portable", refuse_other_devices, run<bias_residual_layernorm::portable::forward>},
      Forward{kReference, refuse_other_devices, residual_layernorm::forward_reference},
};

}  // namespace

std::string ResidualLayerNormProblem::describe() const {
  return fmt::format("N={} C={} {}{}{}{}{}{}", N, C, name_of(dtype), rms ? " rms" : "",
                     rms || bias ? "" : " -bias", fp32_parameters ? " parameters=fp32" : "",
                     statistics ? " +statistics" : "", kept >= 0 ? fmt::format(" kept={}", kept) : "");
}
double ResidualLayerNormProblem::flops() const {
  return 9.0 * static_cast<double>(N * C);
}
double ResidualLayerNormProblem::bytes() const {
  const double statistics_bytes = statistics ? 2.0 * static_cast<double>(N) * 4 : 0;
  const auto parameter = static_cast<double>(size_of(fp32_parameters ? DType::f32 : dtype));
  return static_cast<double>(4 * N * C) * static_cast<double>(size_of(dtype)) +
         static_cast<double>((1 + bias) * C) * parameter + statistics_bytes;
}

const Op<ResidualLayerNormProblem, ResidualLayerNormForward>& residual_layernorm_forward_op() {
  static const Op<ResidualLayerNormProblem, ResidualLayerNormForward> op{kForward, kForwardVariants,
                                                                         forward_problem};
  return op;
}

}  // namespace warpwright::ops
