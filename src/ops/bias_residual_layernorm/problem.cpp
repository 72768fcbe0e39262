#include "ops/bias_residual_layernorm/kernels.hpp"

namespace warpwright::ops {

BiasResidualLayerNormProblem BiasResidualLayerNormForward::problem() const {
  constexpr std::string_view kName = "bias_residual_layernorm.forward";
  require(x.shape.rank() == 2 && x.shape[1] > 0, kName, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const DType dtype = x.dtype;
  require_tensor(kName, "x", x, dtype, {N, C});
  require(is_floating(dtype), kName, fmt::format("x is {}, needs a floating dtype", name_of(dtype)));
  if (x_bias) require_tensor(kName, "x_bias", x_bias, dtype, {C});
  require_tensor(kName, "residual", residual, dtype, {N, C});
  const bool fp32_parameters = layernorm::has_fp32_parameters(kName, dtype, weight);
  require_tensor(kName, "weight", weight, weight.dtype, {C});
  if (bias) require_tensor(kName, "bias", bias, weight.dtype, {C});
  if (sum) require_tensor(kName, "sum", sum, dtype, {N, C});
  require_tensor(kName, "out", out, dtype, {N, C});
  require(out.data != sum.data || N == 0, kName, "out is sum");
  require(!rms || (!bias && !mean), kName, "bias and mean are layer normalization's, not rms's");
  if (mean) require_tensor(kName, "mean", mean, accumulation_dtype(dtype), {N});
  if (rstd) require_tensor(kName, "rstd", rstd, accumulation_dtype(dtype), {N});
  if (rows) require_tensor(kName, "rows", rows, DType::i32, {1});
  return {.N = N,
          .C = C,
          .dtype = dtype,
          .x_bias = static_cast<bool>(x_bias),
          .bias = static_cast<bool>(bias),
          .sum = static_cast<bool>(sum),
          .statistics = mean || rstd,
          .rms = rms,
          .fp32_parameters = fp32_parameters,
          .aligned = begin_at_packs(x, x_bias, residual, weight, bias, sum, out)};
}

std::string BiasResidualLayerNormProblem::describe() const {
  return fmt::format("N={} C={} {}{}{}{}{}{}{}{}", N, C, name_of(dtype), rms ? " rms" : "",
                     x_bias ? " +x_bias" : "", rms || bias ? "" : " -bias",
                     fp32_parameters ? " parameters=fp32" : "", sum ? " +sum" : "",
                     statistics ? " +statistics" : "", unaligned_note(aligned));
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

namespace bias_residual_layernorm {

SumForward as_sum(const BiasResidualLayerNormForward& args) {
  return {args, {}, {}};
}

layernorm::NormForward norm_of(const SumForward& args, const Tensor& x) {
  layernorm::NormForward norm;
  norm.x = x;
  norm.weight = args.weight;
  norm.bias = args.bias;
  norm.out = args.out;
  norm.mean = args.mean;
  norm.rstd = args.rstd;
  norm.eps = args.eps;
  norm.kept_columns = args.kept_columns;
  norm.kept = args.kept;
  norm.centered = !args.rms;
  return norm;
}

std::size_t cpu_workspace(const BiasResidualLayerNormProblem& p, const DeviceInfo&) {
  if (p.sum) return 0;
  return static_cast<std::size_t>(layernorm::backward_parts(p.N) * p.C) *
         size_of(accumulation_dtype(p.dtype));
}

std::string cpu_parts(const BiasResidualLayerNormProblem& p, const DeviceInfo&) {
  return layernorm::parts_text(p.N);
}

}  // namespace bias_residual_layernorm

}  // namespace warpwright::ops
