// The fused kernels on Hopper's tensor cores: their refusals and predicted times.
#include <algorithm>

#include "ops/gated_linear/cuda/persistent.hpp"

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
  if (p.product.bias) return "does not add a bias";
  if (p.product.batch_invariant) return "not batch-invariant";
  if (parts_are_forced(device, "matmul.forward", "gate.forward")) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

Refusal refuse_dx(const GatedDxProblem& p, const DeviceInfo& device) {
  if (parts_are_forced(device, "matmul.dx", "gate.backward")) return kPartsForced;
  return refuse_sizes(matmul::extent_of(p.product), p.gate.columns, p.product.aligned && p.gate.aligned);
}

// The product's extent as the kernel has it, and an activation, whose time the gate's is close to.
template <class Problem>
matmul::Request request_of(const Problem& p) {
  matmul::Request request = matmul::request_of(p.product);
  request.activation = Activation::gelu_tanh;
  return request;
}

// As the selector of matmul would choose it, if this tile were all that it had.
template <class Problem>
Selection selection_of(const Problem& p, const DeviceInfo& device) {
  const matmul::Request request = request_of(p);
  const int most = std::max(device.gpu.multiprocessors / kTile.cluster(), 1);
  Selection s;
  s.tile = matmul::tile_of(kTile);
  s.workers = static_cast<int>(std::clamp<std::int64_t>(matmul::tiles_of(request.extent, kTile), 1, most));
  s.raster = request.extent.rows >= 16384 ? 4 : 16;
  const double on_h200 = matmul::seconds_of(request, matmul::Schedule::persistent, s.tile, s.workers);
  s.seconds =
      std::max(on_h200 * (matmul::costs_of_h200().multiprocessors / std::max(device.gpu.multiprocessors, 1)),
               p.bytes() / matmul::kPassBandwidth);
  return s;
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
  forward(context, args, selection_of(args.problem(), context.device()));
}
void run_dx(const Context& context, const GatedDx& args) {
  dx(context, args, selection_of(args.problem(), context.device()));
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
