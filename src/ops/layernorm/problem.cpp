// Checks the arguments of a normalization and reduces them to a problem.
#include <algorithm>

#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops {
namespace {

double to_double(std::int64_t n) {
  return static_cast<double>(n);
}

// Checks weight and bias, and finds the dtype of out: `out` is the forward's out or the backward's dout.
void check_parameters(std::string_view operation, NormProblem& p, const Tensor& weight, const Tensor& bias,
                      const Tensor& out, std::string_view out_name) {
  p.weight = static_cast<bool>(weight);
  p.bias = static_cast<bool>(bias);
  require(p.weight || !p.bias, operation, "bias comes without weight");
  p.fp32_parameters = p.weight && layernorm::has_fp32_parameters(operation, p.dtype, weight);
  if (p.weight) require_tensor(operation, "weight", weight, p.parameters_dtype(), {p.C});
  if (p.bias) require_tensor(operation, "bias", bias, p.parameters_dtype(), {p.C});
  p.out_as_parameters = p.fp32_parameters && out.dtype == DType::f32;
  require_tensor(operation, out_name, out, p.out_dtype(), {p.N, p.C});
}

}  // namespace

NormForwardProblem LayerNormForward::problem() const {
  return layernorm::forward_problem("layernorm.forward", layernorm::as_norm(*this));
}
NormBackwardProblem LayerNormBackward::problem() const {
  return layernorm::backward_problem("layernorm.backward", layernorm::as_norm(*this));
}

std::string NormProblem::describe() const {
  const std::string_view parameters = bias ? "" : weight ? " -bias" : " -weight";
  return fmt::format("N={} C={} {}{}{}{}", N, C, name_of(dtype), centered || !weight ? parameters : "",
                     fp32_parameters ? " parameters=fp32" : "", out_as_parameters ? " out=fp32" : "");
}

std::string NormForwardProblem::describe() const {
  return NormProblem::describe() + (statistics ? " +statistics" : "") +
         (kept >= 0 ? fmt::format(" kept={}", kept) : "") + std::string(unaligned_note(aligned));
}
double NormForwardProblem::flops() const {
  return (centered ? 8.0 : 5.0) * to_double(N * C);
}
double NormForwardProblem::bytes() const {
  const double per_row =
      statistics ? (centered ? 2 : 1) * static_cast<double>(size_of(accumulation_dtype(dtype))) : 0;
  return to_double(N * C) * static_cast<double>(size_of(dtype) + size_of(out_dtype())) +
         to_double(N) * per_row +
         to_double(C * (weight + bias)) * static_cast<double>(size_of(parameters_dtype()));
}

std::string NormBackwardProblem::describe() const {
  return fmt::format("{} dx{} dparameters{}{}{}{}{}", NormProblem::describe(), sign_of(dx_store),
                     sign_of(dparameters_store), dsum ? " +dsum" : "", from_out ? " from out" : "",
                     kept >= 0 ? fmt::format(" kept={}", kept) : "", unaligned_note(aligned));
}
double NormBackwardProblem::flops() const {
  return (centered ? 12.0 : 9.0) * to_double(N * C);
}
double NormBackwardProblem::bytes() const {
  const double wide = static_cast<double>(size_of(out_dtype())), narrow = static_cast<double>(size_of(dtype));
  const double passes = wide + (from_out ? wide : narrow) + narrow * (dx_store == Store::add || dsum ? 2 : 1);
  const double statistics = static_cast<double>(size_of(accumulation_dtype(dtype)));
  return to_double(N * C) * passes + to_double(N) * statistics * (centered && !from_out ? 2 : 1) +
         to_double(C * (weight + bias)) * static_cast<double>(size_of(dparameters_dtype));
}

namespace layernorm {

NormForward as_norm(const LayerNormForward& args) {
  return {args, true};
}
NormBackward as_norm(const LayerNormBackward& args) {
  return {args, true};
}

bool has_fp32_parameters(std::string_view operation, DType dtype, const Tensor& weight) {
  if (weight.dtype == dtype) return false;
  require(weight.dtype == DType::f32 && size_of(dtype) == 2, operation,
          fmt::format("weight is {} beside x of {}, needs {} or, beside 16 bits, fp32", name_of(weight.dtype),
                      name_of(dtype), name_of(dtype)));
  return true;
}

std::int64_t kept_columns(std::string_view operation, std::int64_t N, DType dtype, const Tensor& columns,
                          const Tensor& kept) {
  if (!columns) {
    require(!kept, operation, "kept comes without kept_columns");
    return -1;
  }
  require(columns.shape.rank() == 1 && columns.shape[0] >= 1, operation, "kept_columns must be (1 + K)");
  require_tensor(operation, "kept_columns", columns, DType::i32, columns.shape);
  const std::int64_t K = columns.shape[0] - 1;
  if (K > 0 && N > 0) require_tensor(operation, "kept", kept, dtype, {N, K});
  return K;
}

NormForwardProblem forward_problem(std::string_view operation, const NormForward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, operation, "x must be (N, C) with C ≥ 1");
  NormForwardProblem p;
  p.N = a.x.shape[0];
  p.C = a.x.shape[1];
  p.dtype = a.x.dtype;
  p.centered = a.centered;
  const DType statistics = accumulation_dtype(p.dtype);
  require_tensor(operation, "x", a.x, p.dtype, {p.N, p.C});
  require(is_floating(p.dtype), operation, fmt::format("x is {}, needs a floating dtype", name_of(p.dtype)));
  check_parameters(operation, p, a.weight, a.bias, a.out, "out");
  if (a.mean) require_tensor(operation, "mean", a.mean, statistics, {p.N});
  if (a.rstd) require_tensor(operation, "rstd", a.rstd, statistics, {p.N});
  p.statistics = a.mean || a.rstd;
  p.kept = kept_columns(operation, p.N, p.dtype, a.kept_columns, a.kept);
  require(p.kept < 1 || a.out.data != a.x.data || p.N == 0, operation,
          "out is x, whose columns are to be kept");
  p.aligned = begin_at_packs(a.x, a.weight, a.bias, a.out);
  return p;
}

NormBackwardProblem backward_problem(std::string_view operation, const NormBackward& a) {
  require(a.dx.shape.rank() == 2 && a.dx.shape[1] > 0, operation, "dx must be (N, C) with C ≥ 1");
  NormBackwardProblem p;
  p.N = a.dx.shape[0];
  p.C = a.dx.shape[1];
  p.dtype = a.dx.dtype;
  p.centered = a.centered;
  p.from_out = static_cast<bool>(a.out);
  const DType statistics = accumulation_dtype(p.dtype);
  require_tensor(operation, "dx", a.dx, p.dtype, {p.N, p.C});
  require(is_floating(p.dtype), operation, fmt::format("dx is {}, needs a floating dtype", name_of(p.dtype)));
  check_parameters(operation, p, a.weight, a.bias, a.dout, "dout");
  require(p.from_out != static_cast<bool>(a.x), operation, "one of x and out is to be given");
  if (p.from_out) {
    require_tensor(operation, "out", a.out, p.out_dtype(), {p.N, p.C});
    p.kept = kept_columns(operation, p.N, p.dtype, a.kept_columns, a.kept);
  } else {
    require_tensor(operation, "x", a.x, p.dtype, {p.N, p.C});
    require(!a.bias && !a.kept_columns && !a.kept, operation, "bias, kept_columns and kept go with out");
    p.bias = static_cast<bool>(a.dbias);
  }
  if (p.centered && (!p.from_out || p.kept > 0)) require_tensor(operation, "mean", a.mean, statistics, {p.N});
  require_tensor(operation, "rstd", a.rstd, statistics, {p.N});
  if (a.dsum) require_tensor(operation, "dsum", a.dsum, p.dtype, {p.N, p.C});
  p.dsum = static_cast<bool>(a.dsum);
  require(!p.dsum || a.dx_store == Store::assign, operation, "dsum is given beside dx +=");
  p.dx_store = a.dx_store;
  p.dparameters_store = a.dparameters_store;
  p.dparameters_dtype = statistics;
  for (const Tensor* gradient : {&a.dweight, &a.dbias}) {
    if (!*gradient) continue;
    require(p.weight, operation, "there are gradients of parameters, but no weight");
    const std::string_view name = gradient == &a.dweight ? "dweight" : "dbias";
    p.dparameters_dtype = gradient->dtype == p.parameters_dtype() ? gradient->dtype : statistics;
    require_tensor(operation, name, *gradient, p.dparameters_dtype, {p.C});
  }
  require(!a.dweight || !a.dbias || a.dweight.dtype == a.dbias.dtype, operation,
          "dweight and dbias are of different dtypes");
  p.aligned = begin_at_packs(a.dout, a.x, a.out, a.dsum, a.weight, a.bias, a.dx);
  return p;
}

std::int64_t backward_parts(std::int64_t N) {
  return std::clamp<std::int64_t>(N / kRowsPerPart, 1, kMaxParts);
}
std::string parts_text(std::int64_t N) {
  return fmt::format("{} parts", backward_parts(N));
}

std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>((backward_parts(p.N) * 3 + 1) * p.C) * size_of(accumulation_dtype(p.dtype));
}
std::string cpu_backward_parts(const NormBackwardProblem& p, const DeviceInfo&) {
  return parts_text(p.N);
}

}  // namespace layernorm

}  // namespace warpwright::ops
