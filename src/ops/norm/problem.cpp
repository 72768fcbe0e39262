// Checks the arguments of a normalization and reduces them to a problem.
#include <fmt/format.h>

#include <algorithm>

#include "ops/norm/kernels.hpp"

namespace warpwright::ops {
namespace {

double to_double(std::int64_t n) {
  return static_cast<double>(n);
}

// True if weight is fp32 and x has 16 bits.
bool has_fp32_parameters(std::string_view operation, DType dtype, const Tensor& weight) {
  if (!weight || weight.dtype == dtype) return false;
  require(weight.dtype == DType::f32 && size_of(dtype) == 2, operation,
          fmt::format("weight is {} and x is {}; weight must be {} or, if x has 16 bits, fp32",
                      name_of(weight.dtype), name_of(dtype), name_of(dtype)));
  return true;
}

// Fills the fields that forward and backward share. `y` is the forward's x or the backward's dx; `out` is the
// forward's out or the backward's dout.
void check_rows(std::string_view operation, NormProblem& p, bool centered, std::string_view y_name,
                const Tensor& y, std::string_view out_name, const Tensor& out, const Tensor& weight,
                const Tensor& bias) {
  require(y.shape.rank() == 2 && y.shape[1] > 0, operation,
          fmt::format("{} must be (N, C) with C ≥ 1", y_name));
  p.N = y.shape[0];
  p.C = y.shape[1];
  p.dtype = y.dtype;
  p.centered = centered;
  require_tensor(operation, y_name, y, p.dtype, {p.N, p.C});
  require(is_floating(p.dtype), operation,
          fmt::format("{} is {}, needs a floating dtype", y_name, name_of(p.dtype)));
  p.weight = static_cast<bool>(weight);
  p.bias = static_cast<bool>(bias);
  require(p.weight || !p.bias, operation, "bias requires weight");
  p.fp32_parameters = has_fp32_parameters(operation, p.dtype, weight);
  if (p.weight) require_tensor(operation, "weight", weight, p.parameters_dtype(), {p.C});
  if (p.bias) require_tensor(operation, "bias", bias, p.parameters_dtype(), {p.C});
  p.out_as_parameters = p.fp32_parameters && out.dtype == DType::f32;
  require_tensor(operation, out_name, out, p.out_dtype(), {p.N, p.C});
}

void check_statistics(std::string_view operation, const NormProblem& p, std::string_view name,
                      const Tensor& statistics) {
  require_tensor(operation, name, statistics, accumulation_dtype(p.dtype), {p.N});
}

// Returns the number of places, or −1 if no columns are looked for.
std::int64_t check_lost(std::string_view operation, const NormProblem& p, const LostColumns& lost) {
  if (!lost) {
    require(!lost.x, operation, "lost_x requires lost_columns");
    return -1;
  }
  require(lost.columns.shape.rank() == 1 && lost.columns.shape[0] >= 1, operation,
          "lost_columns must be (1 + K)");
  require_tensor(operation, "lost_columns", lost.columns, DType::i32, lost.columns.shape);
  const std::int64_t K = lost.places();
  if (K > 0 && p.N > 0) require_tensor(operation, "lost_x", lost.x, p.dtype, {p.N, K});
  return K;
}

void check_residual(std::string_view operation, NormForwardProblem& p, const NormForward& a) {
  p.residual = static_cast<bool>(a.residual);
  p.x_bias = static_cast<bool>(a.x_bias);
  p.sum = static_cast<bool>(a.sum);
  if (!p.residual) {
    return require(!p.x_bias && !p.sum && !a.rows, operation, "x_bias, sum and rows require residual");
  }
  require_tensor(operation, "residual", a.residual, p.dtype, {p.N, p.C});
  if (p.x_bias) require_tensor(operation, "x_bias", a.x_bias, p.dtype, {p.C});
  if (p.sum) require_tensor(operation, "sum", a.sum, p.dtype, {p.N, p.C});
  require_tensor(operation, "out", a.out, p.dtype, {p.N, p.C});
  require(a.out.data != a.sum.data || p.N == 0, operation, "out must not be sum");
  if (a.rows) require_tensor(operation, "rows", a.rows, DType::i32, {1});
  require(p.sum || !a.lost, operation, "with residual, lost columns require sum");
}

}  // namespace

NormForwardProblem NormForward::problem() const {
  constexpr std::string_view kName = "norm.forward";
  NormForwardProblem p;
  check_rows(kName, p, centered, "x", x, "out", out, weight, bias);
  require(centered || (!bias && !mean), kName, "bias and mean require centered");
  if (mean) check_statistics(kName, p, "mean", mean);
  if (rstd) check_statistics(kName, p, "rstd", rstd);
  p.statistics = mean || rstd;
  check_residual(kName, p, *this);
  p.kept = check_lost(kName, p, lost);
  require(p.kept < 1 || p.residual || out.data != x.data || p.N == 0, kName,
          "out must not be x if its lost columns are kept");
  p.aligned = begin_at_packs(x, x_bias, residual, weight, bias, sum, out);
  return p;
}

NormBackwardProblem NormBackward::problem() const {
  constexpr std::string_view kName = "norm.backward";
  NormBackwardProblem p;
  check_rows(kName, p, centered, "dx", dx, "dout", dout, weight, bias);
  p.from_out = static_cast<bool>(out);
  require(p.from_out != static_cast<bool>(x), kName, "exactly one of x and out must be given");
  require(centered || (!bias && !dbias && !mean), kName, "bias, dbias and mean require centered");
  if (p.from_out) {
    require_tensor(kName, "out", out, p.out_dtype(), {p.N, p.C});
    p.kept = check_lost(kName, p, lost);
  } else {
    require_tensor(kName, "x", x, p.dtype, {p.N, p.C});
    require(!bias && !lost && !lost.x, kName, "bias and lost columns require out");
    p.bias = static_cast<bool>(dbias);
  }
  if (p.centered && (!p.from_out || p.kept > 0)) check_statistics(kName, p, "mean", mean);
  check_statistics(kName, p, "rstd", rstd);
  if (dsum) require_tensor(kName, "dsum", dsum, p.dtype, {p.N, p.C});
  p.dsum = static_cast<bool>(dsum);
  require(!p.dsum || dx_store == Store::assign, kName, "dsum cannot be combined with dx +=");
  p.dx_store = dx_store;
  p.dparameters_store = dparameters_store;
  p.dparameters_dtype = accumulation_dtype(p.dtype);
  for (const Tensor* gradient : {&dweight, &dbias}) {
    if (!*gradient) continue;
    require(p.weight, kName, "dweight and dbias require weight");
    const bool narrow = gradient->dtype == p.parameters_dtype();
    p.dparameters_dtype = narrow ? gradient->dtype : accumulation_dtype(p.dtype);
    require_tensor(kName, gradient == &dweight ? "dweight" : "dbias", *gradient, p.dparameters_dtype, {p.C});
  }
  require(!dweight || !dbias || dweight.dtype == dbias.dtype, kName,
          "dweight and dbias must have the same dtype");
  p.aligned = begin_at_packs(dout, x, out, dsum, weight, bias, dx);
  return p;
}

std::string NormProblem::describe() const {
  return fmt::format("N={} C={} {}{}{}{}{}", N, C, name_of(dtype), centered ? "" : " rms",
                     !weight             ? " -weight"
                     : centered && !bias ? " -bias"
                                         : "",
                     fp32_parameters ? " parameters=fp32" : "", out_as_parameters ? " out=fp32" : "");
}

std::string NormForwardProblem::describe() const {
  return fmt::format("{}{}{}{}{}{}{}", NormProblem::describe(), residual ? " +residual" : "",
                     x_bias ? " +x_bias" : "", sum ? " +sum" : "", statistics ? " +statistics" : "",
                     kept >= 0 ? fmt::format(" kept={}", kept) : "", unaligned_note(aligned));
}
double NormForwardProblem::flops() const {
  return ((centered ? 8.0 : 5.0) + residual + x_bias) * to_double(N * C);
}
double NormForwardProblem::bytes() const {
  const double row_statistics =
      statistics ? (centered ? 2 : 1) * static_cast<double>(size_of(accumulation_dtype(dtype))) : 0;
  return to_double(N * C) *
             static_cast<double>(size_of(dtype) * static_cast<std::size_t>(1 + residual + sum) +
                                 size_of(out_dtype())) +
         to_double(N) * row_statistics + to_double(C * x_bias) * static_cast<double>(size_of(dtype)) +
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

namespace norm {

std::int64_t row_parts(std::int64_t N) {
  return std::clamp<std::int64_t>(N / kRowsPerPart, 1, kMaxParts);
}

std::size_t cpu_forward_workspace(const NormForwardProblem& p, const DeviceInfo&) {
  if (!p.residual || p.sum) return 0;
  return static_cast<std::size_t>(row_parts(p.N) * p.C) * size_of(accumulation_dtype(p.dtype));
}
std::string cpu_forward_configuration(const NormForwardProblem& p, const DeviceInfo&) {
  return p.residual ? fmt::format("{} parts", row_parts(p.N)) : "";
}

std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>((row_parts(p.N) * 3 + 1) * p.C) * size_of(accumulation_dtype(p.dtype));
}
std::string cpu_backward_configuration(const NormBackwardProblem& p, const DeviceInfo&) {
  return fmt::format("{} parts", row_parts(p.N));
}

}  // namespace norm

}  // namespace warpwright::ops
