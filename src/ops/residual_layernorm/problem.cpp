#include "ops/bias_residual_layernorm/kernels.hpp"

namespace warpwright::ops {

ResidualLayerNormProblem ResidualLayerNormForward::problem() const {
  constexpr std::string_view kName = "residual_layernorm.forward";
  require(x.shape.rank() == 2 && x.shape[1] > 0, kName, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = x.shape[0], C = x.shape[1];
  require_tensor(kName, "x", x, x.dtype, {N, C});
  require_tensor(kName, "y", y, x.dtype, {N, C});
  const bool fp32_parameters = layernorm::has_fp32_parameters(kName, x.dtype, weight);
  require_tensor(kName, "weight", weight, weight.dtype, {C});
  if (bias) require_tensor(kName, "bias", bias, weight.dtype, {C});
  require(!rms || (!bias && !mean), kName, "bias and mean are layer normalization's, not rms's");
  require_tensor(kName, "residual", residual, x.dtype, {N, C});
  require_tensor(kName, "out", out, x.dtype, {N, C});
  require(out.data != residual.data || N == 0, kName, "out is residual");
  if (mean) require_tensor(kName, "mean", mean, accumulation_dtype(x.dtype), {N});
  if (rstd) require_tensor(kName, "rstd", rstd, accumulation_dtype(x.dtype), {N});
  return {.N = N,
          .C = C,
          .dtype = x.dtype,
          .statistics = mean || rstd,
          .bias = static_cast<bool>(bias),
          .rms = rms,
          .fp32_parameters = fp32_parameters,
          .kept = layernorm::kept_columns(kName, N, x.dtype, kept_columns, kept),
          .aligned = begin_at_packs(x, y, weight, bias, residual, out)};
}

std::string ResidualLayerNormProblem::describe() const {
  return fmt::format("N={} C={} {}{}{}{}{}{}{}", N, C, name_of(dtype), rms ? " rms" : "",
                     rms || bias ? "" : " -bias", fp32_parameters ? " parameters=fp32" : "",
                     statistics ? " +statistics" : "", kept >= 0 ? fmt::format(" kept={}", kept) : "",
                     unaligned_note(aligned));
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

namespace bias_residual_layernorm {

SumForward as_sum(const ResidualLayerNormForward& a) {
  return {{a.x, {}, a.y, a.weight, a.bias, a.residual, a.out, a.mean, a.rstd, a.eps, a.rms},
          a.kept_columns,
          a.kept};
}

std::string cpu_parts(const ResidualLayerNormProblem& p, const DeviceInfo&) {
  return layernorm::parts_text(p.N);
}

}  // namespace bias_residual_layernorm

}  // namespace warpwright::ops
