#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
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

#if WARPWRIGHT_CUDA

std::string refuse_shape(layernorm::cuda::RowShape shape, DType dtype, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(dtype, device); !reason.empty()) return reason;
  return shape.warps > 0 ? "" : "the row is too long or not made of 16-byte packs";
}
std::string refuse_warp_row_forward(const LayerNormForwardProblem& p, const DeviceInfo& device) {
  return refuse_shape(layernorm::cuda::forward_shape(p.C, p.dtype), p.dtype, device);
}
std::string refuse_warp_row_backward(const LayerNormBackwardProblem& p, const DeviceInfo& device) {
  const auto shape = layernorm::cuda::backward_shape(p.C, p.dtype);
  if (std::string reason = refuse_shape(shape, p.dtype, device); !reason.empty()) return reason;
  const std::size_t bytes = layernorm::cuda::backward_stage_bytes(shape, p.dx_store) + 1024;
  return bytes <= device.gpu.shared_bytes_per_block ? "" : "the row is too long for shared memory";
}
std::string refuse_shared_partials(const LayerNormBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  const bool fits = layernorm::cuda::shared_partials_bytes(p.C) + 1024 <= device.gpu.shared_bytes_per_block;
  return fits ? "" : "the row is too long for shared memory";
}

std::size_t parts_bytes(int parts, std::int64_t C) {
  return static_cast<std::size_t>(parts) * 2 * static_cast<std::size_t>(C) * sizeof(float);
}
std::size_t shared_partials_workspace(const LayerNormBackwardProblem& p, const DeviceInfo& device) {
  return parts_bytes(layernorm::cuda::shared_partials_parts(p.N, device), p.C);
}
// With tensors that begin between packs it falls back on shared_partials.
std::size_t warp_row_workspace(const LayerNormBackwardProblem& p, const DeviceInfo& device) {
  const auto shape = layernorm::cuda::backward_shape(p.C, p.dtype);
  return std::max(parts_bytes(layernorm::cuda::warp_row_parts(p.N, shape, device), p.C),
                  shared_partials_workspace(p, device));
}

#endif

using Forward = Variant<LayerNormForwardProblem, LayerNormForward>;
using Backward = Variant<LayerNormBackwardProblem, LayerNormBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", refuse_warp_row_forward, layernorm::cuda::warp_row_forward},
      Forward{"cuda.warp_loop", refuse_cuda, layernorm::cuda::warp_loop_forward},
#endif
      Forward{"cpu.avx512", refuse_avx512, layernorm::avx512::forward},
      Forward{"cpu.avx2", refuse_avx2, layernorm::avx2::forward},
      Forward{kReference, refuse_other_devices, layernorm::forward_reference},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.warp_row", refuse_warp_row_backward, layernorm::cuda::warp_row_backward, warp_row_workspace},
      Backward{"cuda.shared_partials", refuse_shared_partials, layernorm::cuda::shared_partials_backward,
               shared_partials_workspace},
#endif
      Backward{"cpu.avx512", refuse_avx512, layernorm::avx512::backward, backward_workspace},
      Backward{"cpu.avx2", refuse_avx2, layernorm::avx2::backward, backward_workspace},
      Backward{kReference, refuse_other_devices, layernorm::backward_reference},
};

}  // namespace

std::int64_t layernorm::backward_parts(std::int64_t N) {
  return std::clamp<std::int64_t>(N / kRowsPerPart, 1, kMaxParts);
}

namespace layernorm::cuda {
namespace {

// Among the packs a lane from `fewest` to `most`, those that leave the fewest lanes idle.
RowShape shape_of(std::int64_t C, DType dtype, int most_in_one_warp, int fewest, int most) {
  constexpr int kMostWarps = 16, kWarp = 32;
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C / lanes > std::int64_t{kMostWarps} * kWarp * most) return {};
  const int in_row = static_cast<int>(C / lanes);
  if (in_row <= kWarp * most_in_one_warp) return {(in_row + kWarp - 1) / kWarp, 1};
  RowShape best;
  for (int packs = fewest; packs <= most; ++packs) {
    const int warps = (in_row + kWarp * packs - 1) / (kWarp * packs);
    if (warps <= kMostWarps && (best.warps == 0 || warps * packs <= best.warps * best.packs)) {
      best = {packs, warps};
    }
  }
  return best;
}

}  // namespace

RowShape forward_shape(std::int64_t C, DType dtype) {
  return shape_of(C, dtype, 4, 3, 4);
}

RowShape backward_shape(std::int64_t C, DType dtype) {
  return shape_of(C, dtype, 4, 2, 3);
}

std::size_t backward_stage_bytes(RowShape shape, Store dx_store) {
  const int threads = shape.warps == 1 ? kOneWarpThreads : 32 * shape.warps;
  const int tensors = dx_store == Store::add ? 3 : 2, stages = 2;
  const int statistics = 2 * static_cast<int>(sizeof(float));
  return static_cast<std::size_t>(stages * threads * (tensors * shape.packs * 16 + statistics));
}

int warp_row_parts(std::int64_t N, RowShape shape, const DeviceInfo& device) {
  constexpr std::int64_t kLeastRows = 4;  // of a group, so that the parts are not more than the tensors
  const bool one_warp = shape.warps == 1;
  const std::int64_t groups = one_warp ? kOneWarpThreads / 32 : 1;
  const std::int64_t resident =
      one_warp ? backward_warps(shape.packs) / groups : std::max(16 / std::max(shape.warps, 1), 1);
  const std::int64_t wanted = (N + groups * kLeastRows - 1) / (groups * kLeastRows);
  return static_cast<int>(std::min(wanted, resident * device.gpu.multiprocessors));
}

int shared_partials_parts(std::int64_t N, const DeviceInfo& device) {
  const std::int64_t wanted = (N + kSharedPartialsRows - 1) / kSharedPartialsRows;
  return static_cast<int>(std::min<std::int64_t>(wanted, 2 * device.gpu.multiprocessors));
}

std::size_t shared_partials_bytes(std::int64_t C) {
  return 2 * static_cast<std::size_t>(C) * sizeof(float);
}

}  // namespace layernorm::cuda

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
