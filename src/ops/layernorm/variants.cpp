#include <algorithm>
#include <array>

#include "ops/cpu/refuse.hpp"
#include "ops/cuda/refuse.hpp"
#include "ops/layernorm/kernels.hpp"
#include "ops/layernorm/refuse.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kForward = "layernorm.forward";
constexpr std::string_view kBackward = "layernorm.backward";

NormForwardProblem layernorm_forward_problem(const LayerNormForward& a) {
  return layernorm::forward_problem(kForward, {a, true});
}
NormBackwardProblem layernorm_backward_problem(const LayerNormBackward& a) {
  return layernorm::backward_problem(kBackward, {a, true});
}

template <auto kernel>
void run_forward(const Context& context, const LayerNormForward& args) {
  kernel(context, {args, true});
}
template <auto kernel>
void run_backward(const Context& context, const LayerNormBackward& args) {
  kernel(context, {args, true});
}

#if WARPWRIGHT_CUDA

std::string refuse_plain(const NormProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  const bool plain = p.centered && p.weight && p.bias && !p.fp32_parameters;
  return plain ? "" : "layer normalization with parameters of one dtype only";
}
std::string refuse_forward(const NormForwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_plain(p, device); !reason.empty()) return reason;
  return p.kept < 0 ? "" : "no kept columns";
}
std::string refuse_backward(const NormBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_plain(p, device); !reason.empty()) return reason;
  if (p.dparameters_dtype != DType::f32) return "gradients of parameters in fp32 only";
  return p.from_out || p.dsum ? "from the input only, without dsum" : "";
}

std::string refuse_shape(layernorm::cuda::RowShape shape, DType dtype, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(dtype, device); !reason.empty()) return reason;
  return shape.warps > 0 ? "" : "the row is too long or not made of 16-byte packs";
}
std::string refuse_warp_row_forward(const NormForwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_forward(p, device); !reason.empty()) return reason;
  return refuse_shape(layernorm::cuda::forward_shape(p.C, p.dtype), p.dtype, device);
}
std::string refuse_warp_row_backward(const NormBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_backward(p, device); !reason.empty()) return reason;
  const auto shape = layernorm::cuda::backward_shape(p.C, p.dtype);
  if (std::string reason = refuse_shape(shape, p.dtype, device); !reason.empty()) return reason;
  const std::size_t bytes = layernorm::cuda::backward_stage_bytes(shape, p.dx_store) + 1024;
  return bytes <= device.gpu.shared_bytes_per_block ? "" : "the row is too long for shared memory";
}
std::string refuse_shared_partials(const NormBackwardProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_backward(p, device); !reason.empty()) return reason;
  const bool fits = layernorm::cuda::shared_partials_bytes(p.C) + 1024 <= device.gpu.shared_bytes_per_block;
  return fits ? "" : "the row is too long for shared memory";
}

std::size_t parts_bytes(int parts, std::int64_t C) {
  return static_cast<std::size_t>(parts) * 2 * static_cast<std::size_t>(C) * sizeof(float);
}
std::size_t shared_partials_workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  return parts_bytes(layernorm::cuda::shared_partials_parts(p.N, device), p.C);
}
// With tensors that begin between packs it falls back on shared_partials.
std::size_t warp_row_workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  const auto shape = layernorm::cuda::backward_shape(p.C, p.dtype);
  return std::max(parts_bytes(layernorm::cuda::warp_row_parts(p.N, shape, device), p.C),
                  shared_partials_workspace(p, device));
}

#endif

using Forward = Variant<NormForwardProblem, LayerNormForward>;
using Backward = Variant<NormBackwardProblem, LayerNormBackward>;

constexpr std::array kForwardVariants {
#if WARPWRIGHT_CUDA
  Forward{"cuda.warp_row", refuse_warp_row_forward, run_forward<layernorm::cuda::warp_row_forward>},
      Forward{"cuda.warp_loop", refuse_forward, run_forward<layernorm::cuda::warp_loop_forward>},
#endif
      Forward{"cpu.avx512", layernorm::refuse_avx512_rows, run_forward<layernorm::avx512::forward>},
      Forward{"cpu.avx2", layernorm::refuse_avx2_rows, run_forward<layernorm::avx2::forward>},
      Forward{"cpu.portable", refuse_other_devices, run_forward<layernorm::portable::forward>},
      Forward{kReference, refuse_other_devices, run_forward<layernorm::forward_reference>},
};

constexpr std::array kBackwardVariants {
#if WARPWRIGHT_CUDA
  Backward{"cuda.warp_row", refuse_warp_row_backward, run_backward<layernorm::cuda::warp_row_backward>,
           warp_row_workspace},
      Backward{"cuda.shared_partials", refuse_shared_partials,
               run_backward<layernorm::cuda::shared_partials_backward>, shared_partials_workspace},
#endif
      Backward{"cpu.avx512", layernorm::refuse_avx512_rows, run_backward<layernorm::avx512::backward>,
               layernorm::cpu_backward_workspace},
      Backward{"cpu.avx2", layernorm::refuse_avx2_rows, run_backward<layernorm::avx2::backward>,
               layernorm::cpu_backward_workspace},
      Backward{"cpu.portable", refuse_other_devices, run_backward<layernorm::portable::backward>,
               layernorm::cpu_backward_workspace},
      Backward{kReference, refuse_other_devices, run_backward<layernorm::backward_reference>},
};

}  // namespace

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

const Op<NormForwardProblem, LayerNormForward>& layernorm_forward_op() {
  static const Op<NormForwardProblem, LayerNormForward> op{kForward, kForwardVariants,
                                                           layernorm_forward_problem};
  return op;
}

const Op<NormBackwardProblem, LayerNormBackward>& layernorm_backward_op() {
  static const Op<NormBackwardProblem, LayerNormBackward> op{kBackward, kBackwardVariants,
                                                             layernorm_backward_problem};
  return op;
}

}  // namespace warpwright::ops
