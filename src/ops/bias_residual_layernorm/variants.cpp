#include <array>

#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "bias_residual_layernorm.forward";

BiasResidualLayerNormProblem forward_problem(const BiasResidualLayerNormForward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, kForward, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  const DType dtype = a.x.dtype;
  require_tensor(kForward, "x", a.x, dtype, {N, C});
  require(is_floating(dtype), kForward, fmt::format("x is {}, needs a floating dtype", name_of(dtype)));
  if (a.x_bias) require_tensor(kForward, "x_bias", a.x_bias, dtype, {C});
  require_tensor(kForward, "residual", a.residual, dtype, {N, C});
  const bool fp32_parameters = layernorm::has_fp32_parameters(kForward, dtype, a.weight);
  require_tensor(kForward, "weight", a.weight, a.weight.dtype, {C});
  if (a.bias) require_tensor(kForward, "bias", a.bias, a.weight.dtype, {C});
  if (a.sum) require_tensor(kForward, "sum", a.sum, dtype, {N, C});
  require_tensor(kForward, "out", a.out, dtype, {N, C});
  require(a.out.data != a.sum.data || N == 0, kForward, "out is sum");
  require(!a.rms || (!a.bias && !a.mean), kForward, "bias and mean are layer normalization's, not rms's");
  if (a.mean) require_tensor(kForward, "mean", a.mean, accumulation_dtype(dtype), {N});
  if (a.rstd) require_tensor(kForward, "rstd", a.rstd, accumulation_dtype(dtype), {N});
  if (a.rows) require_tensor(kForward, "rows", a.rows, DType::i32, {1});
  return {N,
          C,
          dtype,
          static_cast<bool>(a.x_bias),
          static_cast<bool>(a.bias),
          static_cast<bool>(a.sum),
          a.mean || a.rstd,
          a.rms,
          fp32_parameters};
}

template <auto kernel>
void run(const Context& context, const BiasResidualLayerNormForward& args) {
  kernel(context, {args, {}, {}});
}

using Forward = Variant<BiasResidualLayerNormProblem, BiasResidualLayerNormForward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.state_row", bias_residual_layernorm::cuda::refuse_state_row,
          run<bias_residual_layernorm::cuda::state_row_forward>},
      Forward{"cuda.warp_row", bias_residual_layernorm::cuda::refuse_warp_row_of,
              run<bias_residual_layernorm::cuda::warp_row_forward>},
      Forward{"cuda.warp_loop", bias_residual_layernorm::cuda::refuse_any,
              run<bias_residual_layernorm::cuda::warp_loop_forward>},
#endif
      Forward{"cpu.avx512", layernorm::refuse_avx512_rows, run<bias_residual_layernorm::avx512::forward>,
              bias_residual_layernorm::cpu_workspace},
      Forward{"cpu.avx2", layernorm::refuse_avx2_rows, run<bias_residual_layernorm::avx2::forward>,
              bias_residual_layernorm::cpu_workspace},
      Forward{"cpu.portable", refuse_other_devices, run<bias_residual_layernorm::portable::forward>,
              bias_residual_layernorm::cpu_workspace},
      Forward{kReference, refuse_other_devices, run<bias_residual_layernorm::forward_reference>},
};

}  // namespace

std::string bias_residual_layernorm::cuda::refuse_warp_row(std::int64_t C, DType dtype,
                                                           const DeviceInfo& device) {
  return layernorm::cuda::refuse_row(layernorm::cuda::forward_shape(C, dtype, true), dtype, device);
}

std::string bias_residual_layernorm::cuda::refuse_state_row(const BiasResidualLayerNormProblem& p,
                                                            const DeviceInfo& device) {
  if (std::string reason = refuse_any_row(p.dtype, device); !reason.empty()) return reason;
  if (p.sum || p.statistics || p.rms) return "keeps no sum and no statistics, and takes the mean away";
  if (size_of(p.dtype) != 2 || p.fp32_parameters) return "takes rows and parameters of 16 bits";
  return p.C % 8 == 0 && p.C <= kStateColumns ? "" : "the row is too long or not made of 16-byte packs";
}

std::string bias_residual_layernorm::cuda::refuse_any_row(DType dtype, const DeviceInfo& device) {
  NormProblem p;
  p.dtype = dtype;
  return layernorm::cuda::refuse_any_row(p, device);
}

std::size_t bias_residual_layernorm::cpu_workspace(const BiasResidualLayerNormProblem& p, const DeviceInfo&) {
  if (p.sum) return 0;
  return static_cast<std::size_t>(layernorm::backward_parts(p.N) * p.C) *
         size_of(accumulation_dtype(p.dtype));
}

std::string BiasResidualLayerNormProblem::describe() const {
  return fmt::format("N={} C={} {}{}{}{}{}{}{}", N, C, name_of(dtype), rms ? " rms" : "",
                     x_bias ? " +x_bias" : "", rms || bias ? "" : " -bias",
                     fp32_parameters ? " parameters=fp32" : "", sum ? " +sum" : "",
                     statistics ? " +statistics" : "");
}
double BiasResidualLayerNormProblem::flops() const {
  return (rms ? 7.0 : 10.0) * static_cast<double>(N * C);
}
double BiasResidualLayerNormProblem::bytes() const {
  const double statistics_bytes = statistics ? (rms ? 1.0 : 2.0) * static_cast<double>(N) * 4 : 0;
  const auto element = static_cast<double>(size_of(dtype)), parameter = fp32_parameters ? 4 : element;
  return static_cast<double>(((sum ? 4 : 3) * N + x_bias) * C) * element +
         static_cast<double>((1 + bias) * C) * parameter + statistics_bytes;
}

const Op<BiasResidualLayerNormProblem, BiasResidualLayerNormForward>& bias_residual_layernorm_forward_op() {
  static const Op<BiasResidualLayerNormProblem, BiasResidualLayerNormForward> op{kForward, kForwardVariants,
                                                                                 forward_problem};
  return op;
}

}  // namespace warpwright::ops
