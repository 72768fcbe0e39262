// The fused kernels on Hopper's tensor cores: their refusals and predicted times.
#include "ops/gated_linear/cuda/persistent.hpp"

#include <algorithm>

#include "ops/gated_linear/kernels.hpp"

namespace warpwright::ops::gated_linear::cuda {

Refusal refuse_extent(const matmul::Extent& extent) {
  if (extent.rows == 0 || extent.cols == 0 || extent.depth == 0) return matmul::kEmpty;
  return matmul::counts_in_32_bits(extent) ? "" : matmul::kNot32Bits;
}

Selection select_fused(const matmul::Request& request, double bytes, const DeviceInfo& device) {
  const int most = std::max(device.gpu.multiprocessors / kTile.cluster(), 1);
  Selection s;
  s.tile = matmul::tile_of(kTile);
  s.workers = static_cast<int>(std::clamp<std::int64_t>(matmul::tiles_of(request.extent, kTile), 1, most));
  s.raster = request.extent.rows >= 16384 ? 4 : 16;
  const double on_h200 = matmul::seconds_of(request, matmul::Schedule::persistent, s.tile, s.workers);
  s.seconds =
      std::max(on_h200 * (matmul::costs_of_h200().multiprocessors / std::max(device.gpu.multiprocessors, 1)),
               bytes / matmul::kPassBandwidth);
  return s;
}

namespace {

Refusal refuse_sizes(const matmul::Extent& extent, std::int64_t F, bool aligned) {
  if (F % 8 != 0 || extent.depth % 8 != 0) return "rows of the matrices are not multiples of 16 bytes";
  if (!aligned) return "a tensor does not begin at a multiple of 16 bytes, or one of its rows does not";
  return refuse_extent(extent);
}

Refusal refuse_forward(const GatedForwardProblem& p, const DeviceInfo& device) {
  if (p.product.packed) return matmul::kNotPacked;
  if (p.product.bias) return "does not add a bias";
  if (p.product.batch_invariant) return "not batch-invariant";
  if (forces_parts(p, device)) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

Refusal refuse_dx(const GatedDxProblem& p, const DeviceInfo& device) {
  if (forces_parts(p, device)) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

// A product with an activation, whose time the gate's is close to.
template <class Problem>
Selection selection_of(const Problem& p, const DeviceInfo& device) {
  matmul::Request request = matmul::request_of(p.product);
  request.activation = Activation::gelu_tanh;
  return select_fused(request, p.bytes(), device);
}

template <class Problem>
double cost(const Problem& p, const DeviceInfo& device) {
  return selection_of(p, device).seconds;
}
template <class Problem>
std::string configuration(const Problem& p, const DeviceInfo& device) {
  return matmul::describe(selection_of(p, device));
}

void run_forward(const Context& context, const GatedForward& args) {
  const GatedForwardProblem p = args.problem();
  static constexpr char kOwner = 0;
  forward(context, args, derived(context, &kOwner, p, [&] { return selection_of(p, context.device()); }));
}
void run_dx(const Context& context, const GatedDx& args) {
  const GatedDxProblem p = args.problem();
  static constexpr char kOwner = 0;
  dx(context, args, derived(context, &kOwner, p, [&] { return selection_of(p, context.device()); }));
}

}  // namespace
}  // namespace warpwright::ops::gated_linear::cuda

namespace warpwright::ops {
using namespace gated_linear;

WARPWRIGHT_KERNEL(GatedForward, "cuda.persistent"_kernel) = {
    .needs = Needs::hopper,
    .dtypes = k16Bits,
    .run = cuda::run_forward,
    .refuse = cuda::refuse_forward,
    .cost = cuda::cost<GatedForwardProblem>,
    .configuration = cuda::configuration<GatedForwardProblem>};
WARPWRIGHT_KERNEL(GatedDx, "cuda.persistent"_kernel) = {.needs = Needs::hopper,
                                                        .dtypes = k16Bits,
                                                        .run = cuda::run_dx,
                                                        .refuse = cuda::refuse_dx,
                                                        .cost = cuda::cost<GatedDxProblem>,
                                                        .configuration = cuda::configuration<GatedDxProblem>};

}  // namespace warpwright::ops
