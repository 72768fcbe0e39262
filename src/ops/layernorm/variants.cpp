#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "layernorm.forward";
constexpr std::string_view kBackward = "layernorm.backward";

LayerNormForwardProblem forward_problem(const LayerNormForward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, kForward, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  require_tensor(kForward, "x", a.x, a.x.dtype, {N, C});
  require_tensor(kForward, "weight", a.weight, a.x.dtype, {C});
  require_tensor(kForward, "bias", a.bias, a.x.dtype, {C});
  require_tensor(kForward, "out", a.out, a.x.dtype, {N, C});
  if (a.mean) require_tensor(kForward, "mean", a.mean, accumulation_dtype(a.x.dtype), {N});
  if (a.rstd) require_tensor(kForward, "rstd", a.rstd, accumulation_dtype(a.x.dtype), {N});
  return {N, C, a.x.dtype, a.mean || a.rstd};
}

LayerNormBackwardProblem backward_problem(const LayerNormBackward& a) {
  require(a.x.shape.rank() == 2 && a.x.shape[1] > 0, kBackward, "x must be (N, C) with C ≥ 1");
  const std::int64_t N = a.x.shape[0], C = a.x.shape[1];
  const DType accumulation = accumulation_dtype(a.x.dtype);
  require_tensor(kBackward, "dout", a.dout, a.x.dtype, {N, C});
  require_tensor(kBackward, "x", a.x, a.x.dtype, {N, C});
  require_tensor(kBackward, "weight", a.weight, a.x.dtype, {C});
  require_tensor(kBackward, "mean", a.mean, accumulation, {N});
  require_tensor(kBackward, "rstd", a.rstd, accumulation, {N});
  require_tensor(kBackward, "dx", a.dx, a.x.dtype, {N, C});
  require_tensor(kBackward, "dweight", a.dweight, accumulation, {C});
  require_tensor(kBackward, "dbias", a.dbias, accumulation, {C});
  return {N, C, a.x.dtype, a.dx_store, a.dparameters_store};
}

std::size_t backward_workspace(const LayerNormBackwardProblem& p, const DeviceInfo&) {
  return static_cast<std::size_t>(layernorm::backward_parts(p.N) * 2 * p.C) * sizeof(float);
}

using Forward = Variant<LayerNormForwardProblem, LayerNormForward>;
using Backward = Variant<LayerNormBackwardProblem, LayerNormBackward>;

constexpr std::array kForwardVariants{
    Forward{"cpu.avx512", refuse_avx512, layernorm::avx512::forward},
    Forward{"cpu.avx2", refuse_avx2, layernorm::avx2::forward},
    Forward{kReference, refuse_other_devices, layernorm::forward_reference},
};

constexpr std::array kBackwardVariants{
    Backward{"cpu.avx512", refuse_avx512, layernorm::avx512::backward, backward_workspace},
    Backward{"cpu.avx2", refuse_avx2, layernorm::avx2::backward, backward_workspace},
    Backward{kReference, refuse_other_devices, layernorm::backward_reference},
};

}  // namespace

std::int64_t layernorm::backward_parts(std::int64_t N) {
  return std::clamp<std::int64_t>(N / kRowsPerPart, 1, kMaxParts);
}

std::string LayerNormForwardProblem::describe() const {
  return fmt::format("N={} C={} {}{}", N, C, name_of(dtype), statistics ? " +statistics" : "");
}
double LayerNormForwardProblem::flops() const {
  return 8.0 * static_cast<double>(N * C);
}
double LayerNormForwardProblem::bytes() const {
  const double statistics_bytes = statistics ? 2.0 * static_cast<double>(N) * 4 : 0;
  return 2.0 * static_cast<double>((N + 1) * C) * static_cast<double>(size_of(dtype)) + statistics_bytes;
}

std::string LayerNormBackwardProblem::describe() const {
  return fmt::format("N={} C={} {} dx{} dparameters{}", N, C, name_of(dtype), sign_of(dx_store),
                     sign_of(dparameters_store));
}
double LayerNormBackwardProblem::flops() const {
  return 12.0 * static_cast<double>(N * C);
}
double LayerNormBackwardProblem::bytes() const {
  const double passes = dx_store == Store::add ? 4 : 3;
  return passes * static_cast<double>(N * C) * static_cast<double>(size_of(dtype)) +
         2.0 * static_cast<double>(N + C) * 4;
}

const Op<LayerNormForwardProblem, LayerNormForward>& layernorm_forward_op() {
  static const Op<LayerNormForwardProblem, LayerNormForward> op{kForward, kForwardVariants, forward_problem};
  return op;
}

const Op<LayerNormBackwardProblem, LayerNormBackward>& layernorm_backward_op() {
  static const Op<LayerNormBackwardProblem, LayerNormBackward> op{kBackward, kBackwardVariants,
                                                                  backward_problem};
  return op;
}

}  // namespace warpwright::ops
