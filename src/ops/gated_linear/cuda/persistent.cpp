// The fused kernels on Hopper's tensor cores: their refusals and predicted times.
#include <algorithm>

#include "ops/gated_linear/cuda/persistent.hpp"
#include "ops/matmul/selector.hpp"

namespace warpwright::ops::gated_linear::cuda {
namespace {

// A choice that the user forced for the product or the gate is one for `separate`.
bool parts_are_forced(const DeviceInfo& device, std::string_view product, std::string_view gate) {
  return !forced_choice(device, product).empty() || !forced_choice(device, gate).empty();
}
constexpr const char* kPartsForced = "a kernel of the product or of the gate alone is forced";

Refusal refuse_sizes(const matmul::Extent& extent, std::int64_t F, bool aligned) {
  if (F % 8 != 0 || extent.depth % 8 != 0) return "rows of the matrices are not multiples of 16 bytes";
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes, or one of its rows does not";
  if (extent.rows == 0 || extent.cols == 0 || extent.depth == 0) return matmul::kEmpty;
  if (!matmul::counts_in_32_bits(extent)) return matmul::kNot32Bits;
  return {};
}

Refusal refuse_forward(const GatedForwardProblem& p, const DeviceInfo& device) {
  if (p.product.packed) return matmul::kNotPacked;
  if (p.product.bias) return "no bias";
  if (p.product.batch_invariant) return "whether it is chosen depends on the number of rows";
  if (parts_are_forced(device, "matmul.forward", "gate.forward")) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

Refusal refuse_dx(const GatedDxProblem& p, const DeviceInfo& device) {
  if (parts_are_forced(device, "matmul.dx", "gate.backward")) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

// The time of matmul's product with the same tile and an activation, or that of the memory.
double seconds_of(matmul::Request request, double bytes, const DeviceInfo& device) {
  constexpr matmul::TileShape kTile{128, 192, 1, 1, 2, 1};
  request.activation = Activation::gelu_tanh;
  const int most = std::max(device.gpu.multiprocessors / kTile.cluster(), 1);
  const auto workers = std::clamp<std::int64_t>(matmul::tiles_of(request.extent, kTile), 1, most);
  return std::max(matmul::seconds_of(request, matmul::Schedule::persistent, matmul::tile_of(kTile),
                                     static_cast<int>(workers)),
                  bytes / matmul::kPassBandwidth);
}

double forward_cost(const GatedForwardProblem& p, const DeviceInfo& device) {
  return seconds_of(matmul::request_of(p.product), p.bytes(), device);
}
double dx_cost(const GatedDxProblem& p, const DeviceInfo& device) {
  return seconds_of(matmul::request_of(p.product), p.bytes(), device);
}

}  // namespace
}  // namespace warpwright::ops::gated_linear::cuda

namespace warpwright::ops {

WARPWRIGHT_KERNEL(GatedForward, "cuda.persistent"_kernel) = {.needs = Needs::hopper,
                                                             .dtypes = k16Bits,
                                                             .run = gated_linear::cuda::forward,
                                                             .refuse = gated_linear::cuda::refuse_forward,
                                                             .cost = gated_linear::cuda::forward_cost};
WARPWRIGHT_KERNEL(GatedDx, "cuda.persistent"_kernel) = {.needs = Needs::hopper,
                                                        .dtypes = k16Bits,
                                                        .run = gated_linear::cuda::dx,
                                                        .refuse = gated_linear::cuda::refuse_dx,
                                                        .cost = gated_linear::cuda::dx_cost};

}  // namespace warpwright::ops
