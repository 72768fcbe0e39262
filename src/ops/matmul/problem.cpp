#include <fmt/format.h>

#include <cmath>

#include "ops/matmul/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForwardName = "matmul.forward";
constexpr std::string_view kDxName = "matmul.dx";
constexpr std::string_view kDwName = "matmul.dw";

// Requires a matrix, whose rows may be strided.
void require_rows(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape) {
  require_dtype(operation, argument, tensor, dtype);
  require_shape(operation, argument, tensor, shape);
  require(shape[1] <= 1 || tensor.strides[1] == 1, operation,
          fmt::format("{} must have contiguous elements within a row", argument));
  require(shape[0] <= 1 || tensor.strides[0] >= shape[1], operation,
          fmt::format("rows of {} overlap", argument));
}

void require_packed(const MatmulForward& a) {
  require_dtype(kForwardName, "packed", a.packed, DType::u8);
  require(a.packed.shape.rank() == 1 && reinterpret_cast<std::uintptr_t>(a.packed.data) % 64 == 0,
          kForwardName, "packed must be (packed_bytes) and start at a multiple of 64 bytes");
}

// Requires a result: of the factors' dtype, or fp32 if that has 16 bits.
void require_result(std::string_view operation, std::string_view argument, const Tensor& result,
                    DType factors, const Shape& shape) {
  const bool widened = size_of(factors) == 2 && result.dtype == DType::f32;
  require_rows(operation, argument, result, widened ? DType::f32 : factors, shape);
}

// True if the rows of all given matrices begin at multiples of 16 bytes.
template <class... T>
bool rows_begin_at_packs(const T&... matrices) {
  return ((!matrices || matmul::rows_begin_at_packs(matrices)) && ...);
}

std::string activation_note(Activation activation) {
  return activation == Activation::none ? "" : fmt::format(" {}", name_of(activation));
}

// describe() ends with this note.
template <class Problem>
std::string_view alignment_note(const Problem& p) {
  return p.aligned_factors && !p.aligned ? " unaligned results" : unaligned_note(p.aligned);
}

double product(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}
double element_bytes(DType dtype) {
  return static_cast<double>(size_of(dtype));
}

}  // namespace

MatmulForwardProblem MatmulForward::problem() const {
  require(x.shape.rank() == 2, kForwardName, "x must be (M, K)");
  require(weight.shape.rank() == 2, kForwardName, "weight must be (N, K)");
  const std::int64_t M = x.shape[0], K = x.shape[1], N = weight.shape[0];
  require_rows(kForwardName, "x", x, x.dtype, {M, K});
  packed ? require_packed(*this) : require_tensor(kForwardName, "weight", weight, x.dtype, {N, K});
  if (bias) require_tensor(kForwardName, "bias", bias, x.dtype, {N});
  require_result(kForwardName, "out", out, x.dtype, {M, N});
  if (preact) require_rows(kForwardName, "preact", preact, x.dtype, {M, N});
  if (residual) require_rows(kForwardName, "residual", residual, out.dtype, {M, N});
  require(std::isfinite(scale), kForwardName, "scale must be finite");
  if (rows) require_tensor(kForwardName, "rows", rows, DType::i32, {1});
  if (next_weight) require_tensor(kForwardName, "next_weight", next_weight, x.dtype, next_weight.shape);
  const bool factors = rows_begin_at_packs(x, weight);
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = x.dtype,
          .bias = static_cast<bool>(bias),
          .preact = static_cast<bool>(preact),
          .activation = activation,
          .batch_invariant = batch_invariant,
          .packed = static_cast<bool>(packed),
          .packed_bytes = packed ? packed.shape[0] : 0,
          .rows_counted = static_cast<bool>(rows),
          .residual = static_cast<bool>(residual),
          .scaled = scale != 1,
          .widened = out.dtype != x.dtype,
          .aligned = factors && rows_begin_at_packs(out, preact, residual) &&
                     reinterpret_cast<std::uintptr_t>(bias.data) % 4 == 0,
          .aligned_factors = factors};
}

MatmulDxProblem MatmulDx::problem() const {
  require(dout.shape.rank() == 2, kDxName, "dout must be (M, N)");
  require(weight.shape.rank() == 2, kDxName, "weight must be (N, K)");
  const std::int64_t M = dout.shape[0], N = dout.shape[1], K = weight.shape[1];
  require_rows(kDxName, "dout", dout, dout.dtype, {M, N});
  require_tensor(kDxName, "weight", weight, dout.dtype, {N, K});
  require_result(kDxName, "dx", dx, dout.dtype, {M, K});
  require(static_cast<bool>(preact) == (activation != Activation::none), kDxName,
          "give preact if and only if there is an activation");
  if (preact) require_rows(kDxName, "preact", preact, dout.dtype, {M, K});
  const bool factors = rows_begin_at_packs(dout, weight);
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = dout.dtype,
          .activation = activation,
          .widened = dx.dtype != dout.dtype,
          .aligned = factors && rows_begin_at_packs(dx, preact),
          .aligned_factors = factors};
}

MatmulDwProblem MatmulDw::problem() const {
  require(dout.shape.rank() == 2, kDwName, "dout must be (M, N)");
  require(x.shape.rank() == 2, kDwName, "x must be (M, K)");
  const std::int64_t M = x.shape[0], K = x.shape[1], N = dout.shape[1];
  const DType accumulation = accumulation_dtype(x.dtype);
  require_rows(kDwName, "x", x, x.dtype, {M, K});
  require_rows(kDwName, "dout", dout, x.dtype, {M, N});
  require_tensor(kDwName, "dweight", dweight, accumulation, {N, K});
  if (dbias) require_tensor(kDwName, "dbias", dbias, accumulation, {N});
  const bool factors = rows_begin_at_packs(dout, x);
  return {.M = M,
          .N = N,
          .K = K,
          .dtype = x.dtype,
          .bias = static_cast<bool>(dbias),
          .store = store,
          .aligned = factors && rows_begin_at_packs(dweight),
          .aligned_factors = factors};
}

std::string MatmulForwardProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{}{}{}{}{}{}{}{}{}{}", M, N, K, name_of(dtype), bias ? " +bias" : "",
                     activation_note(activation), preact ? " +preact" : "", scaled ? " scaled" : "",
                     residual ? " +residual" : "", widened ? " in fp32" : "",
                     batch_invariant ? " invariant" : "", packed ? " packed" : "",
                     rows_counted ? " counted" : "", alignment_note(*this));
}
double MatmulForwardProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulForwardProblem::bytes() const {
  const double factors = product(M, K) + product(N, K), biases = bias ? static_cast<double>(N) : 0;
  return (factors + biases + (preact ? product(M, N) : 0)) * element_bytes(dtype) +
         (residual ? 2 : 1) * product(M, N) * element_bytes(widened ? DType::f32 : dtype);
}

std::string MatmulDxProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{}{}{}", M, N, K, name_of(dtype), activation_note(activation),
                     widened ? " in fp32" : "", alignment_note(*this));
}
double MatmulDxProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulDxProblem::bytes() const {
  const double preact = activation == Activation::none ? 0 : product(M, K);
  return (product(M, N) + product(N, K) + preact) * element_bytes(dtype) +
         product(M, K) * element_bytes(widened ? DType::f32 : dtype);
}

std::string MatmulDwProblem::describe() const {
  return fmt::format("M={} N={} K={} {}{} {}{}", M, N, K, name_of(dtype), bias ? " +bias" : "",
                     sign_of(store), alignment_note(*this));
}
double MatmulDwProblem::flops() const {
  return 2 * product(M, N) * static_cast<double>(K);
}
double MatmulDwProblem::bytes() const {
  const double passes = store == Store::add ? 2 : 1;
  const double gradients = product(N, K) + (bias ? static_cast<double>(N) : 0);
  return (product(M, N) + product(M, K)) * element_bytes(dtype) +
         passes * gradients * element_bytes(accumulation_dtype(dtype));
}

}  // namespace warpwright::ops
